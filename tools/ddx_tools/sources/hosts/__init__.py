"""The only doors to the world: a live host, a recorded one."""
