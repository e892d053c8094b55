"""The parts of an investigation: its plan and its capture."""
