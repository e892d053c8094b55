"""Hosts without ddx: the program that is sent there, and how it is asked."""
