"""Sessions: the actors that own the order of runs. Door: ``intake``, ``router``, ``recovery``."""
