"""Comparing what ranks recorded: pure analysis over the rows of flight records, by group and sequence number."""
