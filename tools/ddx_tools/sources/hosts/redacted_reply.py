"""Redacts a host's answer before it is recorded or leaves the host."""

from __future__ import annotations

import dataclasses

from ddx_tools.redaction.agent_answers import redact_agent_answer
from ddx_tools.redaction.files import redact_file
from ddx_tools.redaction.text import Counts, redact
from ddx_tools.sources.host import HostCall, Reply

_TEXT_SUFFIXES = {"txt", "json", "log"}


def redacted_reply(call: HostCall, reply: Reply, counts: Counts | None = None, *, files: bool = True) -> Reply:
    """Redact a reply. With `files`, also redact binary records, which are not read as text."""
    data, end = reply.data, reply.end
    if call.op == "read" and call.options.get("tail") and reply.truncated:
        data = _from_a_line_on(data)
    if call.suffix in _TEXT_SUFFIXES or (call.op == "read" and files):
        data = redact_file(data, counts)
    elif call.op == "agent":
        data = redact_agent_answer(data, counts)
    return dataclasses.replace(
        reply,
        data=data,
        end=redact_file(_from_a_line_on(end), counts) if end is not None else None,
        message=redact(reply.message, counts),
        help=redact(reply.help),
    )


def _from_a_line_on(end: bytes) -> bytes:
    """The end of a file without the rest of a line, which may begin within a secret and then lacks its name."""
    return end.partition(b"\n")[2] or end
