"""Events extracted from logs: which rank reported them, which were handled, and what known messages mean."""
