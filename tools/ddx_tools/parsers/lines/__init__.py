"""Reads logs of any size once: blocks of whole lines, and the lines in them that can matter."""
