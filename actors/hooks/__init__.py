"""Hooks: gates that may decide, observers that may not (G10).

The doors: ``registry.On`` and ``chain.HooksClient``.
"""
