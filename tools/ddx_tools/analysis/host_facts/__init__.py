"""Rows of `host_facts` as analyses read them."""
