"""The bases of findings that no probe saw."""

from __future__ import annotations

BASIS = "added"
"""The `basis` of a finding that was handed in."""
