"""What ddx costs, against its targets: `make bench`. Real processes, real wall time; none of it is a test."""
