"""Budgets of rooms and of their people by round, hour and day.

Hours and days are those of UTC: so it is known when a used-up budget opens again. The cost of a run
is shared equally by its payers: the people whose words it answers, less those whose own budget is
used up; it is refused when the room's budget is, or when nobody is left to pay. A room and its
threads have the same budgets. A run that ends at
the limit of one of its payers ends nobody else's turns: the others pay for another one.
:mod:`motet.protocols.room_costs` keeps the sums of what they have spent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, Protocol

import msgspec
from msgspec.structs import replace

from motet.protocols.budget import Budget
from motet.protocols.limits import Limits
from motet.protocols.messages import Request
from motet.protocols.run_states import OVER, UNSTORED, RunState

HOUR: Final = 3600
DAY: Final = 24
"""In hours."""
ROOM: Final = ""
"""In place of a user: the room itself."""
NANO: Final = 10**9


class Allowance(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The most that may be spent in some time. None: any amount.

    Attributes:
        turns: turns of agents.
        tokens: input and output tokens together.
        usd: US dollars. A model with an unknown price is not counted.
    """

    turns: int | None = None
    tokens: int | None = None
    usd: float | None = None

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name} must be above 0 or absent, not {value}")


ANY: Final = Allowance()


class Budgets(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The budgets of a room: of all its people together, and of each person.

    A round of all together has the room's ``limits``.
    """

    hour: Allowance = ANY
    day: Allowance = ANY
    person_hour: Allowance = ANY
    person_day: Allowance = ANY
    person_round: Allowance = ANY

    @property
    def are_set(self) -> bool:
        return self != Budgets()


class Spent(msgspec.Struct, frozen=True):
    """What was spent in some time; ``nanos``: billionths of a dollar, so that shares are exact."""

    turns: int = 0
    tokens: int = 0
    nanos: int = 0


NOTHING: Final = Spent()


class Costs(msgspec.Struct, frozen=True):
    """What was spent in this hour, on this day, in one round: by user; by all people: ``""``."""

    hour: Mapping[str, Spent] = {}
    day: Mapping[str, Spent] = {}
    round: Mapping[str, Spent] = {}


class FindCosts(Request[Costs], frozen=True, tag="rooms.costs"):
    """The costs of a room at a time, in Unix seconds; those of a thread are its room's.

    ``round``: the account of a round, as :func:`round_account` names it; empty: none.
    """

    room: str
    now: float
    round: str = ""


class Planned(msgspec.Struct, frozen=True):
    """A turn that may be taken, who pays for it, and how much it may use. None: any amount.

    ``why``: by the name of a limit, whose it is, and what to tell when the turn ends at it.
    """

    payers: tuple[str, ...] = ()
    tokens: int | None = None
    usd: float | None = None
    why: Mapping[str, tuple[str, str]] = {}

    def lowered(self, limits: Limits) -> Limits:
        """The limits of its run."""
        pairs = ((limits.tokens, self.tokens), (limits.usd, self.usd))
        tokens, usd = (min((n for n in pair if n is not None), default=None) for pair in pairs)
        if (tokens, usd) == (limits.tokens, limits.usd):
            return limits
        return replace(limits, tokens=None if tokens is None else int(tokens), usd=usd)

    def bound(self, own: Limits) -> Planned:
        """The same, for a run with limits of its own, at which it ends for no budget."""
        left = {name: why for name, why in self.why.items() if getattr(own, name) is None}
        return replace(self, why=left)


UNPLANNED: Final = Planned()


class HasState(Protocol):
    """A run, as far as its turn's budgets need it."""

    @property
    def state(self) -> RunState: ...


class UnderWay(msgspec.Struct, eq=False):
    """A planned turn until it is over: its share falls when a turn is planned beside it.

    ``run``, ``budget``: its run and that one's budget, once they are there.
    """

    planned: Planned = UNPLANNED
    run: HasState | None = None
    budget: Budget | None = None

    @property
    def is_counted(self) -> bool:
        """Whether it has begun, so that the costs count it."""
        return self.run is not None and self.run.state not in UNSTORED

    @property
    def is_over(self) -> bool:
        return self.run is not None and self.run.state in OVER


def hour_of(now: float) -> int:
    return int(now // HOUR)


def round_account(room: str, number: int, budgets: Budgets) -> str:
    """The name under which the costs of a round are kept; empty: nothing bounds them by person."""
    return "" if budgets.person_round == ANY else f"{room}#{number}"


def _windows(
    budgets: Budgets, costs: Costs, user: str, now: float
) -> list[tuple[Allowance, Spent, str, bool]]:
    """The budgets of a user or of the room that bound something, the one first that opens last:
    what is allowed and was spent, a sentence about it, and whether all rounds share it.
    """
    hour = hour_of(now)
    is_room = user == ROOM
    hourly = budgets.hour if is_room else budgets.person_hour
    daily = budgets.day if is_room else budgets.person_day
    who = "the room has" if is_room else f"{user} has"
    found: list[tuple[Allowance, Spent, str, bool]] = []
    for allowed, sums, name, opens in (
        (daily, costs.day, "today", hour - hour % DAY + DAY),
        (hourly, costs.hour, "this hour", hour + 1),
    ):
        if allowed == ANY:
            continue
        again = datetime.fromtimestamp(opens * HOUR, UTC).strftime("%Y-%m-%d %H:%M UTC")
        told = f"{who} {{how}} the {{what}} of {name}: agents answer again from {again}"
        found.append((allowed, sums.get(user, NOTHING), told, True))
    if not is_room and budgets.person_round != ANY:
        told = f"{who} {{how}} the {{what}} of a round: agents answer again in the next one"
        found.append((budgets.person_round, costs.round.get(user, NOTHING), told, False))
    return found


def refusal(
    budgets: Budgets, costs: Costs, user: str, now: float, turns: int = 0, beside: int = 0
) -> str:
    """Why no turn may begin for this user, or in the room, and when one may again; empty: it may.

    ``turns``: those that begin with it; ``beside``: in other rooms that share the budgets.
    """
    for allowed, spent, told, shared in _windows(budgets, costs, user, now):
        begin = turns + beside * shared
        if allowed.turns is not None and spent.turns + begin >= allowed.turns:
            return _told(told, "used", f"{allowed.turns:,} turns")
        if allowed.tokens is not None and spent.tokens >= allowed.tokens:
            return _told(told, "used", f"{allowed.tokens:,} tokens")
        if allowed.usd is not None and spent.nanos >= allowed.usd * NANO:
            return _told(told, "used", f"${allowed.usd:,.2f}")
    return ""


def _told(sentence: str, how: str, what: str) -> str:
    return sentence.replace("{how}", how).replace("{what}", what)


def plan(
    budgets: Budgets,
    costs: Costs,
    turns: Mapping[str, Sequence[str]],
    now: float,
    over: Mapping[str, str] = {},
    beside: Sequence[UnderWay] = (),
) -> tuple[dict[str, Planned], dict[str, str]]:
    """The turns that may be taken at once, and the reasons against the others, by member.

    ``turns``: the people that each of them answers; ``over``: people at whose limit a turn of this
    round has ended, with the reasons. What is left is divided among them and those ``beside``,
    whose limits fall to their new shares, so that they exceed no budget together; a request that
    is under way may, by what it costs beyond what was expected of it.
    """
    if not (over or budgets.are_set):
        return {name: Planned(tuple(dict.fromkeys(who))) for name, who in turns.items()}, {}
    taken: dict[str, int] = {}
    uncounted = Counter(
        who for one in beside if not one.is_counted for who in (ROOM, *one.planned.payers)
    )
    payers: dict[str, tuple[str, ...]] = {}
    refused: dict[str, str] = {}
    for name, people in turns.items():
        reasons = {
            who: over.get(who)
            or refusal(budgets, costs, who, now, taken.get(who, 0), uncounted[who])
            for who in (ROOM, *people)
        }
        paying = tuple(who for who in dict.fromkeys(people) if not reasons[who])
        if reasons[ROOM] or (people and not paying):
            refused[name] = reasons[ROOM] or "; ".join(
                dict.fromkeys(filter(None, reasons.values()))
            )
            continue
        payers[name] = paying
        for who in (ROOM, *paying):
            taken[who] = taken.get(who, 0) + 1
    all = Counter(taken) + Counter(who for one in beside for who in (ROOM, *one.planned.payers))
    planned = {name: _planned(budgets, costs, who, taken, all, now) for name, who in payers.items()}
    for one in beside if planned else ():
        _lower(one, _planned(budgets, costs, one.planned.payers, {}, all, now))
    return planned, refused


def _lower(turn: UnderWay, share: Planned) -> None:
    """Let a turn use no more than its share from now on."""
    own = turn.planned
    tokens = own.tokens if share.tokens is None else min(own.tokens or share.tokens, share.tokens)
    usd = own.usd if share.usd is None else min(own.usd or share.usd, share.usd)
    turn.planned = replace(own, tokens=tokens, usd=usd)
    if (budget := turn.budget) is not None:
        most = replace(share, tokens=_more(budget.usage.total_tokens, share.tokens))
        budget.limits = replace(most, usd=_more(budget.usd, share.usd)).lowered(budget.limits)


def _more(used: float, share: float | None) -> Any:
    return None if share is None else used + share


def _planned(
    budgets: Budgets,
    costs: Costs,
    payers: tuple[str, ...],
    taken: Mapping[str, int],
    all: Mapping[str, int],
    now: float,
) -> Planned:
    """``taken``: the turns of one round, by payer; ``all``: and those beside them."""
    tokens: list[tuple[int, str, str]] = []
    nanos: list[tuple[int, str, str]] = []
    for who in (ROOM, *payers):
        share = 1 if who == ROOM else len(payers)
        for allowed, spent, told, shared in _windows(budgets, costs, who, now):
            turns = all[who] if shared else taken.get(who, 0)
            if not turns:  # a round of another room
                continue
            if allowed.tokens is not None:
                left = max(0, allowed.tokens - spent.tokens) * share // turns
                tokens.append((left, who, _told(told, "nearly used", f"{allowed.tokens:,} tokens")))
            if allowed.usd is not None:
                left = max(0, int(allowed.usd * NANO) - spent.nanos) * share // turns
                nanos.append((left, who, _told(told, "nearly used", f"${allowed.usd:,.2f}")))
    few, cheap = min(tokens, default=None), min(nanos, default=None)
    return Planned(
        payers,
        None if few is None else max(1, few[0]),
        None if cheap is None else max(1, cheap[0]) / NANO,
        {name: one[1:] for name, one in (("tokens", few), ("usd", cheap)) if one is not None},
    )


def shares(total: int, payers: int) -> list[int]:
    """A sum in equal parts; the first ones have one more where it does not divide."""
    return [total // payers + (at < total % payers) for at in range(payers)]
