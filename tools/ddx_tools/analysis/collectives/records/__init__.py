"""Comparison of flight records across ranks, by group and sequence number: pure analysis over stored rows."""
