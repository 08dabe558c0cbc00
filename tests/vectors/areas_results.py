"""The area of large results: what stays inline, what is evicted, how pages are cut."""

from __future__ import annotations

import json
import random
import re
from typing import cast

import attrs
import trio

from motet.actors.storage.location import Location
from motet.actors.storage.results import LIFETIME, MAX_BYTES
from motet.actors.tools.results import INLINE_LIMIT, inline, readable, result_page
from motet.protocols.chat import JsonObject
from motet.protocols.results import (
    COMPRESS_FROM,
    PinResult,
    ReadResult,
    ResultInfo,
    ResultsFull,
    ResultTooLarge,
    checksum,
)
from tests.actors.tools.builders import Clock, Opened, open_results
from tests.vectors.cases import MAIN, Facts, Given, NotUnderstood

_PAGED = ("items", "text", "result_id", "reference", "id")
_SIZED = re.compile(r"(\w+):(\d+)(.*)")


def results(given: Given) -> Facts:
    return trio.run(_results, given)


async def _results(given: Given) -> Facts:
    clock = Clock()
    with Location.memory() as location:
        async with open_results(
            location,
            clock,
            max_bytes=given.number("max_bytes", MAX_BYTES),
            lifetime=given.seconds("ttl") or LIFETIME,
            compress_from=given.number("compression_threshold", COMPRESS_FROM),
        ) as opened:
            if "bytes" in given:
                return await _inline(opened, given)
            if any(key in given for key in _PAGED):
                return await _page(opened, given)
            if "data" in given:
                return await _kept(opened, _data(given.text("data")))
            if any(key in given for key in ("put", "get")):
                return await _Shelf(opened, clock).follow(given)
    raise NotUnderstood(str(given))


async def _inline(opened: Opened, given: Given) -> Facts:
    made = await inline(
        opened.store,
        session="s",
        tool="t",
        read=readable("x" * given.number("bytes")),
        limit=given.number("threshold", INLINE_LIMIT),
    )
    return {MAIN: made.text, "inline": made.result_id is None, "size_bytes": made.size}


async def _kept(opened: Opened, content: bytes) -> Facts:
    info = await opened.put(content)
    stored = await opened.store.ask(ReadResult(info.id, "s"))
    assert stored is not None
    assert checksum(stored.content) == info.sha256
    return {
        "compressed": info.compressed,
        "size_bytes": info.size,
        "get_equal": stored.content == content,
        "checksum": info.sha256,
    }


def _data(text: str) -> bytes:
    """The bytes that an input describes: ``'ab' * 3``, ``random 100 bytes``, or the text."""
    if repeated := re.fullmatch(r"'(.*)' \* (\d+)", text):
        return repeated[1].encode() * int(repeated[2])
    if noise := re.search(r"random\D*(\d+)|(\d+) random", text):
        return random.Random(text).randbytes(int(noise[1] or noise[2]))
    return text.encode()


async def _page(opened: Opened, given: Given) -> Facts:
    """Store what is to be paged, unless only a reference is given, and ask for the page."""
    if "items" in given:
        items = given.get("items")
        rows = list(range(items)) if isinstance(items, int) else items
        reference: object = (await opened.put(json.dumps(rows), kind="json")).id
    elif "text" in given:
        reference = (await opened.put(given.text("text"))).id
    else:
        reference = next(given.get(key) for key in _PAGED if key in given)
    session = given.text("session", given.text("caller_session", "s"))
    answer = await result_page(
        opened.store, session, reference, given.get("offset", 0), given.get("limit")
    )
    data = cast("JsonObject", answer.get("data") or {})
    error = cast("JsonObject", answer.get("error") or {})
    lines = {"lines": str(data["text"]).splitlines()} if data else {}
    return {MAIN: data.get("text"), "success": answer["success"], **data, **lines, **error}


@attrs.define
class _Shelf:
    """A store that is filled under short names, by the operations of an input in their order."""

    opened: Opened
    clock: Clock
    names: dict[str, ResultInfo] = attrs.field(factory=dict[str, ResultInfo])
    error: str | None = None
    got: str | None = None

    async def follow(self, given: Given) -> Facts:
        if "put" not in given and "ttl" in given:  # what is got was there from the start
            await self._put(f"{given.text('get')}:1")
        for key in given.fields:
            for item in given.items(key) or [given.get(key)]:
                self.clock.now += 0.001
                await self._one(key.removeprefix("then_"), str(item))
        on_disk = await self.opened.ids_on_disk()
        gone = [name for name, info in self.names.items() if info.id not in on_disk]
        return {
            MAIN: self.got,
            "evicted": gone,
            "kept": [name for name in self.names if name not in gone],
            "get": self.got,
            **({"error": self.error} if self.error else {}),
        }

    async def _one(self, op: str, item: str) -> None:
        match op:
            case "put":
                await self._put(item)
            case "get":
                await self._get(item)
            case "pin" | "unpin":
                await self.opened.store.ask(PinResult(self.names[item].id, "s", op == "pin"))
            case "sleep" | "wait":
                self.clock.now += float(item)
            case "ttl" | "max_bytes" | "compression_threshold":
                pass
            case _:
                raise NotUnderstood(op)

    async def _put(self, item: str) -> None:
        found = _SIZED.match(item)
        if found is None:
            raise NotUnderstood(item)
        try:
            self.names[found[1]] = await self.opened.put(
                found[1][:1] * int(found[2]), pinned="pinned" in found[3]
            )
        except ResultTooLarge:
            self.error = "TOO_LARGE"
        except ResultsFull:
            self.error = "OUT_OF_MEMORY"

    async def _get(self, name: str) -> None:
        info = self.names.get(name)
        answer = await result_page(self.opened.store, "s", info.id if info else name)
        error = cast("JsonObject", answer.get("error") or {})
        self.error = cast("str | None", error.get("code"))
        self.got = name if answer["success"] else None
