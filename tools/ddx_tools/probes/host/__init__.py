"""Probe `host`: a live capture of a machine, or texts about one, as rows of `host_facts` and findings."""
