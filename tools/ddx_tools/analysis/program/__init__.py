"""The text of a program as a syntax tree: which way leads from one line to another, and who takes it."""
