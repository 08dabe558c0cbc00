"""Rooms: several agents and people, one floor."""
