"""The gateway: the WebSocket protocol ``motet.v1``, a web page and two more APIs on one port.

Door: ``server.open_gateway``. Reading order: ``server`` (the actor, the port), ``connection`` (one
client) with ``methods`` and ``writer``, then ``streams``, ``hub`` and ``outbox`` (how events reach
a client without gap or duplicate, however slow it is). Of the host it knows ``HostApi`` only.
"""
