"""One run, from its input to its end. Doors: ``run``, ``table``, ``runner`` and ``services``."""
