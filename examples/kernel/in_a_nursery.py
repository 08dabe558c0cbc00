"""An actor in an ordinary Trio program: one task among others in a nursery.

    python examples/kernel/in_a_nursery.py

A Trio TCP server that adds up numbers. Each connection is a task that asks the same actor, which
answers one request at a time. ``quit`` cancels the nursery: the actor's clean-up has run when
``trio.run`` returns.
"""

from __future__ import annotations

from functools import partial

import trio

from motet.protocols.messages import Request
from motet.runtime import Actor, ActorRef, handles, open_system


class Add(Request[int], frozen=True, tag="sum.add"):
    """Answered with the sum so far."""

    amount: int


class Sum(Actor[Add]):
    def __init__(self) -> None:
        self.total = 0

    @handles(Add)
    async def add(self, request: Add) -> int:
        self.total += request.amount
        return self.total

    async def on_stop(self) -> None:
        print(f"stopped at {self.total}", flush=True)


async def actors(*, task_status: trio.TaskStatus[ActorRef[Add]]) -> None:
    """The task in which the actors live."""
    async with open_system() as system:
        task_status.started(await system.start(Sum, name="sum"))
        await trio.sleep_forever()


async def serve(total: ActorRef[Add], server: trio.CancelScope, stream: trio.SocketStream) -> None:
    """One connection: receives a number, sends the sum so far."""
    text = (await stream.receive_some(100)).decode("ascii", "replace").strip()
    if text == "quit":
        server.cancel()
        return
    try:
        answer = await total.ask(Add(int(text)), timeout=1)
        await stream.send_all(b"%d\n" % answer)
    except ValueError as error:
        await stream.send_all(f"{error}\n".encode())


async def main() -> None:
    async with trio.open_nursery() as nursery:
        total: ActorRef[Add] = await nursery.start(actors)
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        connection = partial(serve, total, nursery.cancel_scope)
        nursery.start_soon(trio.serve_listeners, connection, listeners)
        print("port", listeners[0].socket.getsockname()[1], flush=True)


if __name__ == "__main__":
    trio.run(main)
