"""Small changes of words that many messages need."""

from __future__ import annotations


def capital(text: str) -> str:
    """A text with a capital first letter; unlike `str.capitalize`, it leaves the rest as it is."""
    return text[:1].upper() + text[1:]
