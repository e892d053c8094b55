"""Which rank runs where."""
