"""Serializes models to the JSON that leaves ddx."""

from __future__ import annotations

from pydantic import BaseModel

from ddx_tools.model.diagnosis import lean_json
from ddx_tools.redaction.structures import redact_json


def published_json(model: BaseModel) -> str:
    """Return a model as JSON without secrets and empty values, with keys in field order."""
    return redact_json(lean_json(model))
