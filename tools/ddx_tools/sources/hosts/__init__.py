"""The implementations of `Host`: live, recording, recorded."""
