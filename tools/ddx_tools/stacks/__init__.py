"""Stacks of all ranks: from dumps to rows, from rows to what was seen."""
