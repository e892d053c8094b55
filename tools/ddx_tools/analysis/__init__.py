"""What rows of all hosts say together: collectives, ranks, programs, log events, hosts. Pure functions of the store."""
