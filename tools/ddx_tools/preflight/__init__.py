"""Trying out a process group before the job, or between two failures: who is wrong, slow, or never comes."""
