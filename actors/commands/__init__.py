"""Commands in chat text, the same wherever a text comes from: gateway, command line, bridges."""
