"""Why a distributed PyTorch job hangs, crashes or is slow: the library behind `ddx`.

`investigate` looks at a live job, a bundle, or files, and returns an `Investigation`; its `diagnose()` is the answer.
What stands in `__all__` is the public interface. Everything else may change.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ddx_tools.model.version import __version__

if TYPE_CHECKING:
    from ddx_tools.evidence.store import Store
    from ddx_tools.investigation.result import Investigation
    from ddx_tools.investigation.run import investigate
    from ddx_tools.model.diagnosis import Diagnosis, Finding
    from ddx_tools.sources.host import Host

__all__ = ["Diagnosis", "Finding", "Host", "Investigation", "Store", "__version__", "investigate"]

_PLACES = {
    "Diagnosis": "ddx_tools.model.diagnosis",
    "Finding": "ddx_tools.model.diagnosis",
    "Host": "ddx_tools.sources.host",
    "Investigation": "ddx_tools.investigation.result",
    "Store": "ddx_tools.evidence.store",
    "investigate": "ddx_tools.investigation.run",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for: `ddx --help` needs none of them."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_PLACES[name]), name)
