"""What torch writes of its memory."""
