"""Probe `job_log`: what the lines of a job's logs say about its ranks."""
