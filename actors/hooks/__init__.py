"""Hooks: gates that may decide on a call, observers that may not (G10)."""
