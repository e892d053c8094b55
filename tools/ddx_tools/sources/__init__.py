"""Where material comes from: what somebody brought is walked, unpacked, sniffed and read here, once."""
