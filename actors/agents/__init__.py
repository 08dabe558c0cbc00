"""Agents as data. Doors: ``spec.AgentSpec``, ``registry.AgentRegistry``, ``toolkit.Toolkit``."""
