"""Agents that are scored: what they are given, where they work, and what they leave behind."""
