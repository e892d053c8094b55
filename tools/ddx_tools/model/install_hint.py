"""The command that installs extras of ddx from the same place as this installation, as no index may have it."""

from __future__ import annotations

import json
import shlex
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname


def install_command(extra: str) -> str:
    """The shell command that adds an extra (`agent`, `lab`, …) to this Python.

    `direct_url.json` (PEP 610) says where ddx came from: a checkout or a URL. An installation from an index has none.
    """
    try:
        origin = json.loads(distribution("debug-distributed").read_text("direct_url.json") or "{}")
    except PackageNotFoundError:
        origin = {}
    url = str(origin.get("url", ""))
    pip = [sys.executable, "-m", "pip", "install"]
    if url.startswith("file:"):
        checkout = Path(url2pathname(urlsplit(url).path))
        what = f"{checkout if checkout.is_dir() else '.'}[{extra}]"
        hint = shlex.join([*pip, *(["-e"] if origin.get("dir_info", {}).get("editable") else []), what])
        return hint if checkout.is_dir() else f"{hint} (in a checkout of debug-distributed)"
    system = origin.get("vcs_info", {}).get("vcs")
    where = f" @ {system}+{url}" if system else f" @ {url}" if url else ""
    return shlex.join([*pip, f"debug-distributed[{extra}]{where}"])
