"""The incident gate: compares `ddx why` on every view of every incident with `expected.tsv`."""
