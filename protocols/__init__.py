"""What is said: frozen structs, protocols and pure data.

No trio, no I/O, no imports from the other layers.
"""
