"""Which hosts are meant, and what reaches them."""
