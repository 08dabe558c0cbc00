"""A client of a gateway, on Trio: it reconnects, resumes, and sends nothing twice.

Reading order: ``states`` (the tables), ``machine`` (the protocol, without I/O) with ``requests``,
then ``client`` (the calls) and ``link`` (one connection).
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
