"""Redacts rank agents' answers: a JSON header, and a payload whose part sizes the header gives."""

from __future__ import annotations

import json

from ddx_tools.redaction.files import redact_file
from ddx_tools.redaction.structures import redact_value
from ddx_tools.redaction.text import Counts, redact_bytes


def redact_agent_answer(data: bytes, counts: Counts | None = None) -> bytes:
    """Redact an agent's answer and update the sizes in its header; returns the same object if it has no secrets."""
    head, newline, payload = data.partition(b"\n")
    try:
        header = json.loads(head)
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict):
        return redact_bytes(head, counts) + newline + redact_file(payload, counts)
    clean_header = redact_value(header, counts)
    parts, rest = _parts(header, payload)
    clean_parts = [redact_file(part, counts) for part in parts]
    clean_rest = redact_file(rest, counts)
    clean_payload = b"".join([*clean_parts, clean_rest])
    if clean_header == header and clean_payload == payload:
        return data
    for entry, part in zip(clean_header.get("parts") or [], clean_parts, strict=False):
        entry["bytes"] = len(part)
    if header.get("bytes") == len(payload):
        clean_header["bytes"] = len(clean_payload)
    return json.dumps(clean_header).encode() + newline + clean_payload


def _parts(header: dict[str, object], payload: bytes) -> tuple[list[bytes], bytes]:
    """The payload's parts by the header, and the remainder, which is everything if the sizes do not add up."""
    told = header.get("parts")
    sizes = [entry.get("bytes") if isinstance(entry, dict) else None for entry in told] if type(told) is list else []
    parts, at = [], 0
    for size in sizes:
        if type(size) is not int or not 0 <= size <= len(payload) - at:
            return [], payload
        parts.append(payload[at : at + size])
        at += size
    return parts, payload[at:]
