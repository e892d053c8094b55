"""Probe `host`: a live look at a machine or texts about one, as rows of `host_facts` and findings."""
