"""Parameters and results of the gateway's methods about approvals."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from motet.protocols.approvals import ApprovalDecision, ApprovalInfo, ApprovalState, Grant

_Id = Annotated[str, Meta(min_length=1, max_length=200)]


class ApprovalsListParams(msgspec.Struct, frozen=True):
    session: _Id | None = None
    room: _Id | None = None
    state: ApprovalState | None = None
    limit: Annotated[int, Meta(ge=1, le=200)] = 50


class ApprovalsResolveParams(msgspec.Struct, frozen=True):
    """A resend under the same ``key`` gets the first answer's result."""

    id: _Id
    decision: ApprovalDecision
    key: _Id
    note: str = ""


class ApprovalsGrantsParams(msgspec.Struct, frozen=True):
    agent: str | None = None
    room: _Id | None = None


class ApprovalsRevokeParams(msgspec.Struct, frozen=True):
    grant: _Id
    room: _Id | None = None


class ApprovalsList(msgspec.Struct, frozen=True):
    """Newest first."""

    approvals: tuple[ApprovalInfo, ...]


class Resolved(ApprovalInfo, frozen=True):
    """``duplicate``: the result of the first answer with that key."""

    status: Literal["done", "duplicate"] = "done"


class GrantsList(msgspec.Struct, frozen=True):
    """Newest first."""

    grants: tuple[Grant, ...]


class Revoked(msgspec.Struct, frozen=True):
    """The grant does not count any more: calls ask again."""

    grant: str
