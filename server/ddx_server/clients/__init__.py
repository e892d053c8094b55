"""`ddx install`: the MCP server's entry in the configuration of the programs that people work in."""
