"""Ids of calls that no other call of any transcript has, and that every provider takes.

Some servers number calls anew in each answer, or give two calls one id; others refuse a request
with such a pair, or with an id of more than 40 characters, and so all later turns of the session.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from msgspec.structs import replace

from motet.protocols.chat import Call

PREFIX = "call_"
LENGTH = 40


def with_own_ids(calls: Sequence[Call], run_id: str, iteration: int) -> tuple[Call, ...]:
    """The calls of one answer, each with an id made of its run, request, place and given id.

    Equal arguments give equal ids, so that a replay finds the same.
    """
    return tuple(
        replace(call, id=_own_id(f"{call.id}:{run_id}:{iteration}:{place}"))
        for place, call in enumerate(calls)
    )


def _own_id(seed: str) -> str:
    digest = hashlib.sha256(seed.encode("utf-8", "replace")).hexdigest()
    return PREFIX + digest[: LENGTH - len(PREFIX)]
