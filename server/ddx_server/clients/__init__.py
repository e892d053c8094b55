"""`ddx install`: adds the MCP server to the configuration of agent clients and editors."""
