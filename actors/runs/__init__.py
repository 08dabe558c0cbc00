"""Calls that wait for a person: asked for, answered once, and gone on with after a restart."""

from __future__ import annotations


# What an agent is, and the turn it takes.
