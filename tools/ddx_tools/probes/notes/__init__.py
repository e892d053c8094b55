"""Probe `notes`: what a person wrote about the job."""
