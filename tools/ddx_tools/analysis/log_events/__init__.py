"""Events that were read out of logs: who reported them, which are handled, what known messages mean."""
