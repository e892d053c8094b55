"""The sources of material: the user's files are walked, unpacked, identified and read here, once."""
