"""Removes secrets before anything is saved, printed or sent."""
