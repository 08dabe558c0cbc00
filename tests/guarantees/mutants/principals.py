"""Defects of isolation: what is asked for by its name or id is given to whoever asks."""

# A mutant is by its nature inside.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable

from motet.actors.agents.prompt import CachedPrompt, PromptCache, PromptInput
from motet.actors.gateway.streams import Streams, Subscription
from motet.actors.hosting import wiring as equipment
from motet.actors.hosting.answers import Access
from motet.actors.runs.run import Run
from motet.actors.runs.table import RunTable
from motet.actors.storage import memory as memories
from motet.actors.telemetry.error_channel import error_detail
from motet.actors.telemetry.tracer import StoreSpan
from motet.protocols.chat import JsonObject
from motet.protocols.errors import ErrorProtocol, GetError
from motet.protocols.host import StreamHead
from motet.protocols.memory import FIND
from motet.protocols.results import Entry, LruIndex
from motet.protocols.sessions import GetSession, Principal, SessionInfo
from motet.protocols.tools import ToolSpec
from motet.runtime import ActorRef
from motet.runtime.testing.scheduler import Patch
from tests.guarantees.law import Mutant

__all__ = ["MUTANTS"]


def _find_sessions_by_name() -> list[Patch]:
    """Whoever knows the name of a session has it."""

    async def owned(access: Access, session: str, principal: Principal) -> SessionInfo | None:
        return await access._sessions.ask(GetSession(session))

    return [(Access, "find_session", owned)]


def _show_errors_by_id() -> list[Patch]:
    """Whoever knows the id of a stored error may read it."""

    async def is_ours(access: Access, session: str, principal: Principal) -> bool:
        return True

    return [(Access, "sees_session", is_ours)]


def _tell_models_of_any_error() -> list[Patch]:
    """A model is shown the error that it names, of whatever session."""

    async def detail_of_any(
        store: ActorRef[ErrorProtocol],
        session: str,
        error_id: object,
        span: StoreSpan | None = None,
        is_related: Callable[[str], Awaitable[bool]] | None = None,
    ) -> JsonObject:
        stored = await store.ask(GetError(str(error_id)))
        owner = stored.session_id if stored else session
        return await error_detail(store, owner, error_id, span, is_related)

    return [(equipment, "error_detail", detail_of_any)]


def _page_any_result() -> list[Patch]:
    """A model may read on in any result whose id it knows."""
    find = LruIndex.find

    def find_any(ledger: LruIndex, result_id: str, session: str, now: float) -> Entry | None:
        entry = ledger._entries.get(result_id)
        return find(ledger, result_id, entry.session if entry else session, now)

    return [(LruIndex, "find", find_any)]


def _stop_anybody() -> list[Patch]:
    """A stop ends runs, whoever asks for it."""

    def may(table: RunTable, principal: Principal, run: Run) -> bool:
        return True

    return [(RunTable, "may", may)]


def _let_anybody_listen() -> list[Patch]:
    """A stream is given to whoever names it."""

    def is_ours(subscription: Subscription, owner: str | None) -> bool:
        return True

    return [(Subscription, "sees", is_ours)]


def _let_whoever_came_first_listen() -> list[Patch]:
    """A stream that does not exist yet is given to whoever names it: there is nothing in it."""
    look_up = Streams._verify

    async def ours_if_new(streams: Streams, subscription: Subscription) -> StreamHead | None:
        head = await streams._api.events.head(subscription.stream)
        if head.head == 0:
            subscription.principal = Principal(subscription.principal.user, "admin")
        return await look_up(streams, subscription)

    return [(Streams, "_verify", ours_if_new)]


def _share_prompts() -> list[Patch]:
    """An agent's prompt is written anew only when there is something new to be recalled."""
    write = PromptCache.write

    def write_rarely(
        prompts: PromptCache, given: PromptInput, tools: tuple[ToolSpec, ...]
    ) -> CachedPrompt:
        last = prompts._last.get(given.agent)
        if last is not None and last.tools == tools and not given.recalled:
            return last
        return write(prompts, given, tools)

    return [(PromptCache, "write", write_rarely)]


def _recall_all() -> list[Patch]:
    """A memory is found by its words, whoever said them."""
    of_all = re.sub(r" AND m\.owner = \(.*?= \?1\)", "", FIND)
    assert of_all != FIND
    return [(memories, "FIND", of_all)]


MUTANTS = (
    Mutant("G16", "finds sessions by their names alone", _find_sessions_by_name),
    Mutant("G16", "shows stored errors by their ids alone", _show_errors_by_id),
    Mutant("G16", "tells models of the errors of all", _tell_models_of_any_error),
    Mutant("G16", "pages the results of all", _page_any_result),
    Mutant("G16", "stops the runs of anybody", _stop_anybody),
    Mutant("G16", "lets anybody listen", _let_anybody_listen),
    Mutant("G16", "lets those listen who come first", _let_whoever_came_first_listen),
    Mutant("G16", "keeps one prompt for all users", _share_prompts),
    Mutant("G16", "recalls what others have said", _recall_all),
)
