"""The event bus: events are numbered on disk, then given to whoever listens."""
