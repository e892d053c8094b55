"""An MCP server that does nothing: what the SDK alone costs."""

from mcp.server import MCPServer

MCPServer("bare", log_level="WARNING").run()
