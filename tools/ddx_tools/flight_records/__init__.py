"""Where flight records come from: files, ranks of a live job, debug endpoints; and the rows they become."""
