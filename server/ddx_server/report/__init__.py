"""One answer as a page that is forwarded: one HTML file, which asks nothing of anywhere."""
