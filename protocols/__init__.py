"""The messages and data of all layers: frozen structs, protocols, and pure rules on JSON.

Invariants: no Trio, no I/O, no imports from the other layers.
"""
