"""Flight records."""
