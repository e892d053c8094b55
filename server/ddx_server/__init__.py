"""The user interfaces of ddx: the command line, the MCP server and the agent, all on the same probes."""
