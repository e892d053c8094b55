"""An answer as a self-contained HTML page that can be forwarded."""
