"""A minimal script of a collective fault: who called what, in which order, with as few ranks as keep the fault."""
