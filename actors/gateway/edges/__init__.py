"""APIs of other clients on the gateway's port: OpenAI's chat completions, and AG-UI.

Door: :mod:`.routes`. Invariant: an edge only converts. It brings inputs to the same sessions as
``motet.v1``, under the same tokens and limits; the history that a client sends is not trusted
(G16).
"""
