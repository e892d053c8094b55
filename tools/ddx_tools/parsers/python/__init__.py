"""What Python prints and holds: tracebacks, stacks, sources."""
