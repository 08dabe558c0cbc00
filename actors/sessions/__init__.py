"""Sessions: the actors that own the order of runs. Doors: ``intake``, ``router``, ``recovery``."""
