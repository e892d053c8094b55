"""From the lines of logs to what they say of the ranks: scan a file, find out whose lines they are, tell."""
