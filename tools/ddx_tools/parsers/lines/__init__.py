"""Logs of any size, read once: blocks of whole lines, and which of their lines can matter."""
