"""Makes a minimal script that reproduces a collective fault: the ranks' calls in order, with as few ranks as needed."""
