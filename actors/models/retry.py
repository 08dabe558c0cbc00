"""When to try a failed model request again: a pure policy.

Retried is what may pass by itself. What a person or another request must put right (a key, an
empty account, a mistake in the request, a full context) is never retried. The back-off is
exponential with full jitter: clients that failed together do not come back together.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from motet.protocols.models import ModelFailure

PASSING_KINDS = frozenset({"rate_limit", "timeout", "connection", "cut", "overloaded", "server"})


class RetryPolicy(msgspec.Struct, frozen=True):
    """How often and how patiently. Times in seconds.

    Attributes:
        attempts: requests in all, the first included.
        base: upper bound of the first delay; it doubles with every attempt.
        cap: upper bound of every delay that we choose ourselves.
        patience: the longest wait that a provider may ask for.
    """

    attempts: int = 4
    base: float = 0.5
    cap: float = 30.0
    patience: float = 120.0


class Retry(msgspec.Struct, frozen=True):
    """Try again after ``delay`` seconds."""

    delay: float


class GiveUp(msgspec.Struct, frozen=True):
    """Do not try again; ``reason`` is empty when the failure says enough."""

    reason: str = ""


Decision: TypeAlias = Retry | GiveUp

DEFAULT = RetryPolicy()


def decide(
    failure: ModelFailure, attempt: int, chance: float, policy: RetryPolicy = DEFAULT
) -> Decision:
    """What to do after ``attempt`` attempts, the last of which ended with ``failure``.

    ``chance`` is a random number of [0, 1). A wait that the provider asks for wins over ours.
    """
    assert attempt >= 1, attempt
    assert 0 <= chance < 1, chance
    if failure.kind not in PASSING_KINDS:
        return GiveUp()
    if attempt >= policy.attempts:
        return GiveUp(f"after {attempt} attempts")
    if failure.retry_after is None:
        return Retry(chance * min(policy.cap, policy.base * 2.0 ** (attempt - 1)))
    if failure.retry_after > policy.patience:
        return GiveUp(
            f"the provider asks to wait {failure.retry_after:.0f} s,"
            f" longer than the {policy.patience:.0f} s we wait"
        )
    return Retry(failure.retry_after)
