"""The event loop that runs the caller, for calls that block and would hold it up."""

from __future__ import annotations

import sys
from typing import Literal

import trio


def loop_here() -> Literal["trio", "asyncio"] | None:
    """The loop whose thread a blocking call would hold up, None outside of any.

    In guest mode both loops share a thread; what counts is which of them runs the caller.
    """
    if trio.lowlevel.in_trio_task():
        return "trio"
    asyncio = sys.modules.get("asyncio")  # a program that has not imported it runs no loop of it
    if asyncio is not None and asyncio._get_running_loop() is not None:
        return "asyncio"
    return None


def refuse_in_asyncio(what: str, instead: str) -> None:
    """Raise ``RuntimeError`` inside of asyncio, with what to write there instead."""
    if loop_here() == "asyncio":
        raise RuntimeError(f"{what} runs on Trio and was called inside asyncio: {instead}")


def refuse_in_loop(what: str, *, trio: str, asyncio: str) -> None:
    """Raise ``RuntimeError`` inside of a loop, with what to write there instead."""
    here = loop_here()
    if here is not None:
        instead = trio if here == "trio" else asyncio
        raise RuntimeError(f"{what} was called inside {here}, whose loop it would block: {instead}")
