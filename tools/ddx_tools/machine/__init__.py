"""Machines: a live look or texts of one, to rows of host_facts, and rows to findings."""
