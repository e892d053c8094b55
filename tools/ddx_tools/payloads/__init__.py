"""Single files that run in the user's interpreter: standard library and torch only, Python 3.8, torch 2.0."""

from pathlib import Path

SITE_DIRECTORY = Path(__file__).resolve().parent / "site"
"""To be put first on PYTHONPATH: its `sitecustomize` brings the rank agent into every process of a job."""

HOST_AGENT_DIRECTORY = Path(__file__).resolve().parent / "host_agent"
"""What stands in for packages on a host without ddx."""
