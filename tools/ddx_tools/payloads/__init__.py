"""Single files that run in the user's interpreter, with only the standard library and torch: Python 3.8, torch 2.0."""

from pathlib import Path

SITE_DIRECTORY = Path(__file__).resolve().parent / "site"
"""Put first on PYTHONPATH: its `sitecustomize` loads the rank agent into every process of a job."""

HOST_AGENT_DIRECTORY = Path(__file__).resolve().parent / "host_agent"
"""Replacements for packages on a host without ddx."""
