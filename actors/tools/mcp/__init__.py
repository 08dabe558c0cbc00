"""MCP servers and their tools. The door: ``directory.McpDirectory``."""
