"""Probe `preflight`: collectives run between ranks before a job, timed and checked."""
