"""Which frames belong to the user's program, and what a library frame is called apart from where it is installed."""

from __future__ import annotations

import re

_LIBRARY = re.compile(
    r"(^|/)(site-packages|dist-packages)/|/lib(64)?/python\d+\.\d+/|^<frozen |^<(string|stdin|unknown|eval_with_key)"
    r"|/torchinductor_[^/]+/|/ddx_tools/payloads/"
)
_PACKAGE_ROOT = re.compile(
    r"^.*?/(?:site-packages|dist-packages)/|^.*?/lib(?:64)?/python\d+\.\d+/(?!site-packages|dist-packages)"
)


def is_user_file(file: str) -> bool:
    """Whether a source file is the user's: not an installed package, the standard library or generated code."""
    return bool(file) and not _LIBRARY.search(file.replace("\\", "/"))


def module_path(file: str) -> str:
    """A library file as seen from its package root: `torch/distributed/distributed_c10d.py`, `threading.py`."""
    return _PACKAGE_ROOT.sub("", file.replace("\\", "/"), count=1)
