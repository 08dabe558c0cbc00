"""The event bus: events are numbered on disk, then given to whoever listens."""

from __future__ import annotations


# What runs did and how long it took: recorded, stored, shown and exported.
