"""Shows one part of an incident: a rank, a group, a collective, a record, lines of a file."""
