"""Secrets are removed here, before anything is kept, printed or sent."""
