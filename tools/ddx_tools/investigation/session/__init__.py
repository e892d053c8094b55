"""The parts of an investigation: its plan, what it captures, where evidence is from, its result."""
