"""`ddx ask`: a model that investigates with the tools of the MCP server, on a budget."""
