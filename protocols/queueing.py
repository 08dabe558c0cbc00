"""Queue modes for inputs that arrive while a session works, and their configuration.

Source: agent loop specification, section 11.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

import attrs

from motet.protocols.messages import Request

QueueMode: TypeAlias = Literal["steer", "followup", "collect", "interrupt", "reject"]
"""The treatment of an input that arrives while its session works.

``steer``: it enters the run before its next model request; ``followup``: it is answered after the
run; ``collect``: the same, joined with all inputs that arrive meanwhile; ``interrupt``: it ends its
sender's run, and replaces its sender's waiting inputs; ``reject``: it is refused.
"""
MODES: tuple[QueueMode, ...] = get_args(QueueMode)

Overflow: TypeAlias = Literal["reject", "drop_oldest", "drop_newest"]
"""The treatment of an input to a full queue: refuse it; accept it and drop the oldest input; or
acknowledge it and drop it.
"""


@attrs.frozen(kw_only=True)
class QueueConfig:
    """The configuration of the input queues of sessions.

    Attributes:
        direct: the mode in chats with one person, unless the session or the message has another.
        group: the same in group chats.
        capacity: inputs of one session that may wait.
        overflow: for one input more. The sender of a dropped input gets an event.
        debounce: seconds for which an input from a channel is held, in case its sender goes on
            typing; 0: none.
        concurrent: concurrent runs of one group chat.
        throttle: share of the model's window from which only one run is allowed.
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
    """Join inputs into another one, which gets all their text.

    In one transaction, before the run begins, so that after a crash no input is lost or answered
    twice. Raises ``NotFound`` when one of them has begun or ended.
    """

    run_id: str
    text: str
    inputs: tuple[str, ...]


class SetQueueMode(Request[None], frozen=True, tag="sessions.set_queue"):
    """Set the queue mode of a session; None: the default again. Raises ``NotFound``."""

    session: str
    mode: QueueMode | None
    generation: str | None = None
