"""Queue modes for inputs that arrive while a session works, and their configuration.

Source: agent loop specification, section 11.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

import attrs

from motet.protocols.messages import Request

QueueMode: TypeAlias = Literal["steer", "followup", "collect", "interrupt", "reject"]
"""What becomes of an input that comes while its session works.

``steer``: it enters the run before its next model request; ``followup``: it is answered after the
run; ``collect``: the same, as one with all that came meanwhile; ``interrupt``: it ends its sender's
run, and takes the place of what its sender has waiting; ``reject``: it is refused.
"""
MODES: tuple[QueueMode, ...] = get_args(QueueMode)

Overflow: TypeAlias = Literal["reject", "drop_oldest", "drop_newest"]
"""What a full queue does: refuse the input; or take it, and drop the oldest, or the newest, which
is that one.
"""


@attrs.frozen(kw_only=True)
class QueueConfig:
    """How inputs wait for the runs of their session.

    Attributes:
        direct: the mode in chats with one person, unless the session or the message has another.
        group: the same in group chats.
        capacity: inputs of one session that may wait.
        overflow: what happens to one more. Whoever sent what is dropped is told.
        debounce: seconds for which an input that a channel brings is held, in case its sender
            types on; 0: not at all.
        concurrent: runs of one group chat that may go on at once.
        throttle: share of the model's window from which on only one may.
    """

    direct: QueueMode = "steer"
    group: QueueMode = "collect"
    capacity: int = 10
    overflow: Overflow = "reject"
    debounce: float = 1.0
    concurrent: int = 3
    throttle: float = 0.6

    def __attrs_post_init__(self) -> None:
        for name, value, known in (
            ("direct", self.direct, MODES),
            ("group", self.group, MODES),
            ("overflow", self.overflow, get_args(Overflow)),
        ):
            if value not in known:
                raise ValueError(f"{name} must be one of {', '.join(known)}, not {value!r}")
        for name, count in (("capacity", self.capacity), ("concurrent", self.concurrent)):
            if count < 1:
                raise ValueError(f"{name} must be 1 or more, not {count!r}")
        if not 0 <= self.debounce < float("inf"):
            raise ValueError(f"debounce must be seconds, 0 or more, not {self.debounce!r}")
        if not 0 < self.throttle <= 1:
            raise ValueError(f"throttle must be above 0 and at most 1, not {self.throttle!r}")


class JoinInputs(Request[None], frozen=True, tag="sessions.join"):
    """Inputs are answered with another one, which has all their text from now on.

    In one transaction, before the run begins, so that no crash loses one or has it answered twice.
    Raises ``NotFound`` when one of them has begun or ended.
    """

    run_id: str
    text: str
    inputs: tuple[str, ...]


class SetQueueMode(Request[None], frozen=True, tag="sessions.set_queue"):
    """Set the queue mode of a session; None: the default again. Raises ``NotFound``."""

    session: str
    mode: QueueMode | None


class QueueModes(Request[dict[str, QueueMode]], frozen=True, tag="sessions.queue_modes"):
    """The sessions that have a mode of their own."""
