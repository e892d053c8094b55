"""A post-mortem of a job: what the evidence says is filled in, and what it cannot say is left as a question."""
