"""The version of the ddx distribution."""

__version__ = "0.1.0"
