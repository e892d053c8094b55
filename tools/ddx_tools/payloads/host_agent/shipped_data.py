"""Replaces `ddx_tools.knowledge.load` on a host: the data was parsed when the archive was made."""

from __future__ import annotations

import json
import pkgutil
from functools import lru_cache
from typing import Any


@lru_cache(maxsize=None)
def shipped(name: str) -> Any:
    """The parsed data of a file below `ddx_tools/knowledge`."""
    data = pkgutil.get_data("ddx_tools", "knowledge/%s.json" % name)
    if data is None:
        raise FileNotFoundError(name)
    return json.loads(data)
