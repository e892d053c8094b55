"""Parsers: bytes in, rows out. Pure, safe on hostile input, without policy."""
