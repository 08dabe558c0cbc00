"""An asyncio daemon that answers each line of a TCP client. Ends on SIGTERM or Ctrl-C."""

import asyncio
import signal

import motet

agent = motet.Agent("helper", model="demo")


async def main() -> None:
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ended.set)

    with motet.HostThread(agents=[agent]) as thread:
        host = thread.asyncio

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while line := await reader.readline():
                async with host.stream(agent, line.decode(), session="tcp") as run:
                    async for event in run:
                        if isinstance(event, motet.TextDelta):
                            writer.write(event.text.encode())
                            await writer.drain()
                writer.write(b"\n")
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        print("listening on", server.sockets[0].getsockname()[1], flush=True)
        await ended.wait()
        server.close()
    print("all runs have ended")


if __name__ == "__main__":
    asyncio.run(main())
