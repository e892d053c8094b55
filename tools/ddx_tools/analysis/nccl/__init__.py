"""Rows of NCCL's logs and of RAS as analyses read them."""
