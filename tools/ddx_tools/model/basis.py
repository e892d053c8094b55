"""Values of the attribute `basis` for findings that no probe made."""

from __future__ import annotations

HANDED_IN = "added"
"""A person or an agent submitted the finding."""
