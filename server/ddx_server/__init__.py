"""The faces of ddx: the command line now, the MCP server and the agent on the same probes."""
