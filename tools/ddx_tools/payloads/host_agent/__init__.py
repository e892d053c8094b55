"""Replacements for packages that a host without ddx lacks; they are part of the archive sent there."""
