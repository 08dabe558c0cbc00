"""Tools: made, described, checked and executed.

The doors: ``tool.tool``, ``context.Context``, ``catalog.ToolCatalog``, ``executor.ToolExecutor``,
``policy.engine.PolicyEngine``, ``mcp.directory.McpDirectory``.
"""
