"""A client of a host that was started with ``motet serve``: ``async with connect(url) as client``.

The front door of :mod:`motet.actors.client`, without logic.
"""

from motet.actors.client import (
    Change,
    Client,
    ClientClosed,
    ClientError,
    ConnectionLost,
    Events,
    Offline,
    Online,
    RequestFailed,
    TurnedAway,
    Unreachable,
    connect,
)

__all__ = [
    "Change",
    "Client",
    "ClientClosed",
    "ClientError",
    "ConnectionLost",
    "Events",
    "Offline",
    "Online",
    "RequestFailed",
    "TurnedAway",
    "Unreachable",
    "connect",
]
