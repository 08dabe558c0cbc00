"""The first frame of a connection: which protocol, and who.

Invariant: nothing but ``connect`` is answered before the client is known; a client that is
turned away is told why, and nothing of it stays but the count of its failures.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import attrs

from motet.actors.gateway.context import Context
from motet.actors.gateway.failures import Refusal, error_body
from motet.protocols import gateway as wire
from motet.protocols.sessions import Principal

_CLOSE_CODES: Final[Mapping[wire.ErrorCode, int]] = {
    "protocol_version": wire.CLOSE_PROTOCOL,
    "limit_reached": wire.CLOSE_OVERLOADED,
}


@attrs.frozen
class Admitted:
    """A client that is known now, and counted: :meth:`Context.leave` takes it back.

    ``bearer`` is whose token it has, ``principal`` whom it acts for: another one for a bridge.
    """

    request_id: str
    bearer: Principal
    principal: Principal
    token_digest: str | None
    resume: Mapping[str, int]


class TurnedAway(Exception):
    """The client gets ``frame``, then the connection is closed with ``code``."""

    def __init__(self, request_id: str, refusal: Refusal) -> None:
        super().__init__(str(refusal))
        self.frame = wire.failed(request_id, error_body(refusal))
        self.code = _CLOSE_CODES.get(refusal.code, wire.CLOSE_POLICY)
        self.reason: str = refusal.code


def admit(context: Context, message: str, peer: str, header_token: str | None) -> Admitted:
    """Judge the first frame. Raises :class:`TurnedAway`."""
    request_id = ""
    try:
        frame = wire.decode_request(message)
        request_id = frame.id
        params = _connect_params(frame)
        bearer, token_digest = context.authenticate(params.auth.token or header_token, peer)
        principal = bearer
        if params.auth.as_user is not None:
            principal = on_behalf(context, bearer, token_digest, params.auth.as_user)
        context.enter(bearer.user)
    except wire.FrameError as error:
        raise TurnedAway(error.request_id, Refusal("bad_frame", str(error))) from None
    except Refusal as refusal:
        raise TurnedAway(request_id, refusal) from None
    return Admitted(request_id, bearer, principal, token_digest, params.resume)


def on_behalf(
    context: Context, bearer: Principal, token_digest: str | None, user: str
) -> Principal:
    """Whom a bridge acts for, never as an admin. Raises :class:`Refusal` for other tokens."""
    if not context.impersonates(token_digest):
        raise Refusal(
            "forbidden", "`as_user` is for the tokens of bridges, which have `impersonate`"
        )
    return Principal(user, "operator" if bearer.role == "admin" else bearer.role)


def _connect_params(frame: wire.RequestFrame) -> wire.ConnectParams:
    if frame.method != "connect":
        raise Refusal("connect_first", f"the first frame is `connect`, not {frame.method!r}")
    try:
        params = wire.decode_params(frame.params, wire.ConnectParams)
    except wire.FrameError as error:
        raise Refusal("invalid_params", str(error)) from None
    if not params.protocol.min <= wire.PROTOCOL <= params.protocol.max:
        raise Refusal(
            "protocol_version",
            f"this server speaks protocol {wire.PROTOCOL}, the client "
            f"{params.protocol.min} to {params.protocol.max}",
        )
    return params
