"""Where material comes from: what the user passed is walked, unpacked, sniffed and read here, once."""
