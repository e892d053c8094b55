"""Hosts on which nobody installed ddx: what is sent there, and how it is asked."""
