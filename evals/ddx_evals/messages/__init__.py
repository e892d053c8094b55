"""What libraries can print: error strings out of source trees, and the catalogue of them."""
