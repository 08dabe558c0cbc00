"""The gateway: the WebSocket protocol ``motet.v1``, a web page and two more APIs on one port.

Door: ``server.open_gateway``. Reading order: ``server`` (the actor, the port), ``connection`` (one
client) with ``methods`` and ``requests``, then ``streams``, ``hub`` and ``outbox`` (events reach a
client without gap or duplicate, however slow it is). It calls the host through ``HostApi`` only.
"""
