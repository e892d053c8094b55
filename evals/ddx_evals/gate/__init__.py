"""The incident gate: what `ddx why` says of every incident in every view, held against `expected.tsv`."""
