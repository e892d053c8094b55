"""Analysis of a program's source as a syntax tree: which paths lead from one line to another, and who takes them."""
