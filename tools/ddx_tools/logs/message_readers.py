"""Readers of the messages that one regular expression cannot take apart; signatures name them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ddx_tools.parsers.logs.cuda_oom import parse_cuda_oom
from ddx_tools.parsers.machine.xid_codes import xid_code


def _cuda_oom(text: str, _: dict[str, Any]) -> dict[str, Any]:
    return parse_cuda_oom(text) or {}


def _xid(_: str, values: dict[str, Any]) -> dict[str, Any]:
    code = xid_code(values["xid"])
    return {"class": code.class_, "blame": code.blame, "action": code.action, "meaning": code.meaning}


READERS: dict[str, Callable[[str, dict[str, Any]], dict[str, Any]]] = {"cuda_oom": _cuda_oom, "xid": _xid}
"""{name: function of the message and of what its groups say, which returns further attributes}."""
