"""A client of a gateway, on Trio: it reconnects, resumes, and says nothing twice.

Reading order: ``machine`` (the protocol, without I/O) with ``following`` (one stream) and
``requests``; then ``client`` (the calls), ``connection`` and ``link`` (the tasks and the socket).
"""

from motet.client.client import Change, Client, Events, Offline, Online, connect
from motet.client.requests import (
    ClientClosed,
    ClientError,
    ConnectionLost,
    RequestFailed,
    TurnedAway,
    Unreachable,
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
