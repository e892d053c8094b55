"""Changes of material that mean nothing: an answer about it should stay the same."""
