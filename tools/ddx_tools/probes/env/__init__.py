"""Probe `env`: variables, launch commands and versions of a job."""
