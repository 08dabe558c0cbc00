"""The messages and data of all layers: frozen structs and protocols. No Trio, no I/O.

No trio, no I/O, no imports from the other layers.
"""
