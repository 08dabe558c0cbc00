"""The effects that tools have had on the outside world, which no crash of a host takes back.

Law: a tool that is not declared idempotent has each of its effects at most once for each call that
a model asked for, whatever is cut off, taken up again or restarted in between.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import attrs
import msgspec

if TYPE_CHECKING:
    from motet.actors.tools.context import Context


class Effect(msgspec.Struct, frozen=True):
    """One thing that was done for a call. ``repeatable``: to do it twice is as good as once."""

    call: str
    what: str
    repeatable: bool = False


@attrs.define(eq=False)
class Ledger:
    """A list of effects, in their order. A tool says what it has just done:

        async def pay(ctx: motet.Context[None], amount: int) -> str:
            ledger.did(ctx, f"paid {amount}")

    Attributes:
        effects: all of them.
        cut_off: nothing counts: the tools that run belong to a host whose power was cut.
    """

    effects: list[Effect] = attrs.field(factory=list[Effect])
    cut_off: bool = False

    def did(self, call: str | Context[Any], what: str, *, repeatable: bool = False) -> None:
        """Something was done for a call: that of the context of a tool, or any name of one.

        The context is better than the id of the call, which only its own session knows.
        """
        if not self.cut_off:
            self.effects.append(Effect(_name(call), what, repeatable))

    def of(self, call: str | Context[Any]) -> Sequence[str]:
        """What was done for a call."""
        name = _name(call)
        return [effect.what for effect in self.effects if effect.call == name]

    def count(self, what: str) -> int:
        """How often something was done, for any call."""
        return sum(1 for effect in self.effects if effect.what == what)

    def doubled(self) -> Sequence[Effect]:
        """What was done more than once for one call, and may not be; empty is at most once."""
        times = Counter(effect for effect in self.effects if not effect.repeatable)
        return [effect for effect, count in times.items() if count > 1]


def _name(call: str | Context[Any]) -> str:
    """A run keeps its id when it is taken up again, and its calls keep theirs."""
    return call if isinstance(call, str) else f"{call.run_id}/{call.call_id}"
