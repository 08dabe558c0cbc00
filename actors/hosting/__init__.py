"""Wiring, configuration, reload and replay of a host. Doors: ``tree.open_tree``, ``tree.Parts``."""
