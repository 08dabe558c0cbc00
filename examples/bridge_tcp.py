"""A bridge: people chat over lines of TCP with an agent behind a gateway, each as their own user.

It is an ordinary client with a token that may impersonate users. MOTET_URL and MOTET_TOKEN select
the gateway; without them it serves its own. Try `nc 127.0.0.1 PORT`: send a name, then lines.
A real bridge authenticates people; here anyone may take any name.
"""

import os
import re

import trio

import motet
import motet.client
from motet.protocols.gateway import CommandAnswer

AGENT = "helper"
MOST = 4_096  # bytes of a line


class Chat:
    """One person's connection."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._turn = trio.Lock()
        self._read = b""

    async def line(self) -> str | None:
        """The next line; None when the person has left or the line is too long."""
        while b"\n" not in self._read:
            data = await self._stream.receive_some()
            self._read += data
            if not data or len(self._read) > MOST:
                return None
        line, _, self._read = self._read.partition(b"\n")
        return line.decode("utf-8", "replace").strip()

    async def say(self, text: str) -> None:
        async with self._turn:
            with trio.fail_after(10):  # a client that does not read is disconnected
                await self._stream.send_all(text.encode() + b"\n")

    async def tell(self, events: motet.client.Events) -> None:
        async for record in events:
            match record.event:
                case motet.MessageAdded(role="assistant", text=text):
                    await self.say(text)
                case motet.RunFailed(message=message):
                    await self.say(f"That went wrong: {message}")
                case motet.ApprovalRequested(id=approval, tool=tool, args=args):
                    await self.say(f"May I? {tool} {args}\n/approve {approval} allow-once")
                case _:
                    pass


async def serve(url: str, token: str | None, stream: trio.SocketStream) -> None:
    chat = Chat(stream)
    await chat.say("Your name?")
    name = await chat.line() or ""
    if not re.fullmatch(r"[\w-]{1,32}", name):
        await chat.say("A name has 1 to 32 letters, digits, _ and -.")
        return
    session = f"agent:{AGENT}:tcp:direct:{name}"
    async with (
        motet.connect(url, token=token, as_user=f"tcp:{name}") as client,
        client.stream(f"session:{session}") as events,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(chat.tell, events)
        await chat.say(f"Hello {name}. /help lists the commands.")
        while (line := await chat.line()) is not None:
            try:
                answer = await client.send(session, line, agent=AGENT)
            except motet.client.RequestFailed as error:
                await chat.say(str(error))
            else:
                if isinstance(answer, CommandAnswer):
                    await chat.say(answer.text)
        nursery.cancel_scope.cancel()  # the person has left; the session's runs continue


async def listen(url: str, token: str | None) -> None:
    async def handle(stream: trio.SocketStream) -> None:
        try:
            await serve(url, token, stream)
        except* (trio.BrokenResourceError, trio.TooSlowError, motet.client.ClientError) as errors:
            print("a chat has ended:", errors.exceptions[0], flush=True)

    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    print("listening on", listener.socket.getsockname()[1], flush=True)
    await trio.serve_listeners(handle, [listener])


async def main() -> None:
    url = os.environ.get("MOTET_URL")
    if url is not None:
        await listen(url, os.environ.get("MOTET_TOKEN"))
        return
    async with motet.open_host(agents=[motet.Agent(AGENT, model="demo")]) as host:
        url = await host.serve(motet.GatewayConfig(listen="127.0.0.1:0"))
        bridge = await host.new_token("bridge", impersonate=True)
        await listen(url.replace("http", "ws", 1), bridge.token)


if __name__ == "__main__":
    try:
        trio.run(main)
    except* KeyboardInterrupt:
        pass
