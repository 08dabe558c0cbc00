"""The error channel: whole errors are stored, models see one line and an id (seed 000)."""
