"""Sessions: a transcript and the actor that owns its order."""
