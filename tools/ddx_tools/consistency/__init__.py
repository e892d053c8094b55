"""What ranks wrote down of the values that they hold (`payloads/site/ddx_consistency.py`), compared offline."""
