"""The messages that libraries can print: error strings from source trees, and their catalogue."""
