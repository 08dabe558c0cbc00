"""Calls that wait for a person: asked for, answered once, and gone on with after a restart."""
