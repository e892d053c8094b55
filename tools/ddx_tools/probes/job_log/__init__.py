"""Probe `job_log`: from the lines of logs to what they say of the ranks."""
