"""One investigation: capture, parse, analyse, judge."""
