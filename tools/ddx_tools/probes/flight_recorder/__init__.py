"""Probe `flight_recorder`: flight records of all ranks, from files, live ranks and debug servers."""
