"""`ddx ask`: a model investigates with the MCP server's tools, within a budget."""
