"""A store of errors in memory, and the tests that any store of errors must pass.

A store for ``open_host(errors=...)`` is tested by a subclass of :class:`ErrorsConformance` in a
test module, which says how the store is opened.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from motet.protocols.chat import JsonObject
from motet.protocols.error_records import SMALL, stored_error
from motet.protocols.errors import (
    ErrorGroup,
    ErrorPage,
    ErrorRecord,
    Errors,
    ErrorText,
    GroupErrors,
    GroupPage,
    InputValidation,
    ListErrors,
    StoredError,
)

__all__ = ["ErrorsConformance", "MemoryErrors"]


class MemoryErrors:
    """A store of errors in a list. The owner of an error is its user."""

    def __init__(self) -> None:
        self._rows: list[tuple[int, StoredError, str]] = []
        self._stored = 0

    async def store(self, records: Sequence[ErrorRecord]) -> set[str]:
        known = {error.id: (error.timestamp, error.session_id, raw) for _, error, raw in self._rows}
        taken = set[str]()
        for record in records:
            own = record.timestamp, record.session_id, record.raw_error
            if record.id not in known:
                self._stored += 1
                fields = msgspec.structs.asdict(record) | {"arguments": record.arguments or None}
                self._rows.append((self._stored, stored_error(fields), record.raw_error))
            elif known[record.id] != own:
                taken.add(record.id)
        return taken

    async def get(self, error_id: str, *, brief: bool = False) -> StoredError | None:
        found = [error for _, error, _ in self._rows if error.id == error_id]
        if not found or not brief or len(str(found[0].raw_error)) <= SMALL:
            return self._counted(found[0]) if found else None
        cut: JsonObject = {"message": found[0].short_summary, "omitted_bytes": SMALL}
        return replace(self._counted(found[0]), raw_error=cut)

    async def read(self, error_id: str, offset: int, limit: int) -> ErrorText | None:
        for _, error, raw in self._rows:
            if error.id == error_id:
                return ErrorText(raw[offset : offset + limit], offset, len(raw))
        return None

    async def page(self, which: ListErrors, cursor: str | None) -> ErrorPage:
        rows = [(e.timestamp, n, e) for n, e, _ in self._rows if _matches(e, which)]
        found, following = _page(rows, which.limit, cursor)
        return ErrorPage(tuple(map(self._counted, found)), following)

    async def groups(self, which: GroupErrors) -> GroupPage:
        rows = [
            (group.last_seen, number, group)
            for number, group in self._groups()
            if which.owner in (None, group.owner)
            and which.agent in (None, group.agent)
            and which.tool_name in (None, group.tool_name)
            and which.kind in (None, group.kind)
            and which.resolved in (None, group.open == 0)
            and (which.start is None or group.last_seen >= which.start)
        ]
        found, following = _page(rows, which.limit, which.cursor)
        return GroupPage(tuple(found), following)

    async def resolve(
        self, session_id: str, tool_name: str, now: float, later: Collection[str] = ()
    ) -> int:
        open_ = [
            at
            for at, (_, error, _) in enumerate(self._rows)
            if (error.session_id, error.tool_name) == (session_id, tool_name)
            and error.resolved is None
            and error.id not in later
        ]
        for at in open_:
            number, error, raw = self._rows[at]
            self._rows[at] = number, replace(error, resolved=now), raw
        return len(open_)

    async def forget(self, session_id: str) -> None:
        self._rows = [row for row in self._rows if row[1].session_id != session_id]

    def _groups(self) -> Iterable[tuple[int, ErrorGroup]]:
        members: dict[tuple[str, str, str], list[tuple[int, StoredError]]] = {}
        for number, error, _ in self._rows:
            key = error.user, error.agent, error.fingerprint
            members.setdefault(key, []).append((number, error))
        for (owner, agent, fingerprint), all_ in members.items():
            newest, times = all_[-1][1], [error.timestamp for _, error in all_]
            yield (
                all_[0][0],
                ErrorGroup(
                    *(fingerprint, owner, agent, newest.tool_name, newest.kind, len(all_)),
                    sum(error.resolved is None for _, error in all_),
                    *(min(times), max(times), newest.id, newest.short_summary),
                    *(newest.session_id, newest.run_id),
                ),
            )

    def _counted(self, error: StoredError) -> StoredError:
        same = (error.user, error.agent, error.fingerprint)
        for _, group in self._groups():
            if (group.owner, group.agent, group.fingerprint) == same:
                times = {"first_seen": group.first_seen, "last_seen": group.last_seen}
                return replace(error, count=group.count, **times)
        return error


def _matches(error: StoredError, which: ListErrors) -> bool:
    return (
        which.session_id in (None, error.session_id)
        and which.tool_name in (None, error.tool_name)
        and which.kind in (None, error.kind)
        and which.owner in (None, error.user)
        and which.agent in (None, error.agent)
        and which.run_id in (None, error.run_id)
        and which.fingerprint in (None, error.fingerprint)
        and which.resolved in (None, error.resolved is not None)
        and (which.start is None or error.timestamp >= which.start)
        and (which.end is None or error.timestamp <= which.end)
    )


T = TypeVar("T")


def _page(
    rows: Iterable[tuple[float, int, T]], limit: int, cursor: str | None
) -> tuple[list[T], str | None]:
    ordered = sorted(rows, key=lambda row: (row[0], row[1]), reverse=True)
    if cursor is not None:
        time, _, number = cursor.partition(":")
        try:
            after = float(time), int(number)
        except ValueError:
            after = math.nan, 0
        if not math.isfinite(after[0]):
            raise InputValidation(f"`cursor` {cursor!r} is not one of a page before")
        ordered = [row for row in ordered if (row[0], row[1]) < after]
    found = ordered[: limit or None]
    following = f"{found[-1][0]!r}:{found[-1][1]}" if found and len(found) == limit else None
    return [row[2] for row in found], following


def record(
    number: int,
    *,
    session: str = "s",
    tool: str = "t",
    user: str = "u",
    run: str = "",
    at: float | None = None,
    fingerprint: str = "f",
) -> ErrorRecord:
    """An error as a host stores it."""
    return ErrorRecord(
        *(f"err_20240101_000000_{number:06x}", float(number) if at is None else at, session, tool),
        *(f'{{"message":"boom {number}"}}', f"boom {number}"),
        kind="timeout",
        run_id=run,
        call_id="c",
        agent="a",
        user=user,
        arguments='{"n":1}',
        fingerprint=fingerprint,
    )


class ErrorsConformance(ABC):
    """Tests of a store of errors; a subclass says how one is opened."""

    @abstractmethod
    def opened(self) -> AbstractAsyncContextManager[Errors]:
        """An empty store, closed at the end of the block."""

    async def test_what_was_stored_is_read_back(self) -> None:
        async with self.opened() as errors:
            assert not await errors.store([record(1), record(2, run="r")])
            found = await errors.get(record(2).id)
            assert found is not None
            assert (found.session_id, found.tool_name, found.kind) == ("s", "t", "timeout")
            assert (found.agent, found.user, found.run_id, found.call_id) == ("a", "u", "r", "c")
            assert found.raw_error == {"message": "boom 2"}
            assert found.arguments == {"n": 1}
            assert (found.count, found.first_seen, found.last_seen) == (2, 1.0, 2.0)
            assert found.resolved is None
            assert await errors.get("err_20240101_000000_ffffff") is None

    async def test_a_taken_id_is_told_and_keeps_its_error(self) -> None:
        async with self.opened() as errors:
            await errors.store([record(1)])
            assert set(await errors.store([record(1, session="other"), record(2)])) == {
                record(1).id
            }
            kept = await errors.get(record(1).id)
            assert kept is not None
            assert kept.session_id == "s"

    async def test_an_error_that_comes_again_is_no_other(self) -> None:
        """A host that got no answer in time stores the same errors once more."""
        async with self.opened() as errors:
            await errors.store([record(1)])
            assert not await errors.store([record(1), record(2)])
            assert len((await errors.page(ListErrors(), None)).errors) == 2

    async def test_pages_meet_every_error_once_whatever_is_stored_meanwhile(self) -> None:
        async with self.opened() as errors:
            await errors.store([record(n, at=float(n // 2)) for n in range(1, 12)])
            seen: list[str] = []
            cursor: str | None = None
            for step in range(20):
                page = await errors.page(ListErrors(limit=3), cursor)
                seen += [error.id for error in page.errors]
                await errors.store([record(100 + step)])
                if (cursor := page.cursor) is None:
                    break
            assert seen == [record(n).id for n in range(11, 0, -1)]

    async def test_every_filter_finds_its_errors(self) -> None:
        async with self.opened() as errors:
            await errors.store(
                [
                    record(1),
                    record(2, session="s2", tool="t2", user="u2", run="r2", fingerprint="g"),
                    record(3, tool="t2"),
                ]
            )
            await errors.resolve("s", "t2", 9.0)
            for which, found in (
                (ListErrors(), "321"),
                (ListErrors(session_id="s"), "31"),
                (ListErrors(tool_name="t2"), "32"),
                (ListErrors(tool_name="t2", owner="u"), "3"),
                (ListErrors(owner="u2"), "2"),
                (ListErrors(run_id="r2"), "2"),
                (ListErrors(agent="a", kind="timeout"), "321"),
                (ListErrors(agent="b"), ""),
                (ListErrors(kind="auth"), ""),
                (ListErrors(fingerprint="g"), "2"),
                (ListErrors(start=2.0, end=2.5), "2"),
                (ListErrors(resolved=True), "3"),
                (ListErrors(resolved=False, limit=1), "2"),
            ):
                page = await errors.page(which, None)
                assert "".join(error.id[-1] for error in page.errors) == found, which

    async def test_a_wrong_cursor_is_refused(self) -> None:
        async with self.opened() as errors:
            for cursor in ("x", "1", ":", "nan:1"):
                try:
                    found = await errors.page(ListErrors(limit=1), cursor)
                except InputValidation:
                    continue
                raise AssertionError(f"{cursor!r} gave {found}")

    async def test_equal_errors_of_one_owner_are_a_group(self) -> None:
        async with self.opened() as errors:
            await errors.store([record(1), record(2), record(3, user="u2"), record(4, session="x")])
            own = (await errors.groups(GroupErrors(owner="u", limit=9))).groups
            assert [(g.count, g.open, g.first_seen, g.last_seen) for g in own] == [(3, 3, 1.0, 4.0)]
            assert own[0].newest == record(4).id
            await errors.resolve("s", "t", 9.0)
            await errors.forget("x")
            done = (await errors.groups(GroupErrors(limit=9, resolved=True))).groups
            assert [(g.owner, g.count, g.open) for g in done] == [("u", 2, 0), ("u2", 1, 0)][::-1]
            everyone = (await errors.groups(GroupErrors(limit=9))).groups
            assert sorted((g.owner, g.count) for g in everyone) == [("u", 2), ("u2", 1)]

    async def test_a_success_resolves_the_errors_before_it_and_no_others(self) -> None:
        async with self.opened() as errors:
            await errors.store([record(1), record(2), record(3), record(4, tool="other")])
            assert await errors.resolve("s", "t", 9.0, [record(3).id]) == 2
            assert await errors.resolve("s", "t", 10.0, [record(3).id]) == 0
            found = (await errors.page(ListErrors(resolved=True), None)).errors
            assert [(error.id, error.resolved) for error in found] == [
                (record(2).id, 9.0),
                (record(1).id, 9.0),
            ]

    async def test_groups_come_in_pages(self) -> None:
        async with self.opened() as errors:
            await errors.store([record(n, fingerprint=f"f{n}") for n in range(1, 8)])
            seen: list[str] = []
            cursor: str | None = None
            while True:
                page = await errors.groups(GroupErrors(limit=3, cursor=cursor))
                seen += [group.fingerprint for group in page.groups]
                if (cursor := page.cursor) is None:
                    break
            assert seen == [f"f{n}" for n in range(7, 0, -1)]

    async def test_a_forgotten_session_leaves_nothing(self) -> None:
        async with self.opened() as errors:
            await errors.store([record(1), record(2, session="x")])
            await errors.forget("s")
            assert await errors.get(record(1).id) is None
            assert len((await errors.page(ListErrors(), None)).errors) == 1

    async def test_a_raw_error_is_read_in_parts(self) -> None:
        async with self.opened() as errors:
            await errors.store([record(1)])
            whole, at = "", 0
            while (part := await errors.read(record(1).id, at, 5)) is not None and part.text:
                assert part.offset == at
                whole, at = whole + part.text, at + len(part.text)
                # A store that ignores the offset would be read for ever.
                assert at <= part.size == len(record(1).raw_error)
            assert whole == record(1).raw_error
            assert await errors.read("err_20240101_000000_ffffff", 0, 5) is None

    async def test_a_raw_error_of_any_size_is_stored_once_and_whole(self) -> None:
        for size in (262_000, 262_144, 600_000):
            async with self.opened() as errors:
                await self._stored_whole(errors, size)

    async def _stored_whole(self, errors: Errors, size: int) -> None:
        text = "".join(f"é{n}" for n in range(size // 6))
        raw = f'{{"message":"{text}","more":"{"x" * (size - len(text) - 24)}"}}'
        large = replace(record(1), raw_error=raw)
        assert not await errors.store([record(0), large])
        found = await errors.get(large.id)
        assert found is not None
        assert found.raw_error["message"] == text
        for at in (0, 5, 200_000, 262_143, 262_144, size - 3, size, size + 9):
            part = await errors.read(large.id, at, 70_000)
            assert part is not None
            assert (part.text, part.offset, part.size) == (raw[at : at + 70_000], at, size)
        other = replace(large, id=record(0).id)  # an id that another error has
        assert [*await errors.store([other])] == [other.id]
        found = await errors.get(other.id)
        assert found is not None
        assert found.raw_error == {"message": "boom 0"}
