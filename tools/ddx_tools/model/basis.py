"""Where a finding is from, if no probe saw it: the values of its attribute `basis`."""

from __future__ import annotations

HANDED_IN = "added"
"""A person or an agent handed the finding in."""
