"""``motet resend`` and ``motet sessions release``: what a person does after a crash."""

from __future__ import annotations

import sys

import msgspec
import trio

from motet.actors.storage.recovery import RELEASE
from motet.cli.exits import OK
from motet.cli.render import one_line
from motet.cli.running import talking
from motet.cli.setup import Setup
from motet.cli.stored import writing
from motet.protocols.errors import NotFound
from motet.protocols.gateway import Sent
from motet.protocols.storage import Statement


def resend(setup: Setup, run_id: str, *, json: bool) -> int:
    """Have the running server answer an interrupted input after all. Raises ``NotFound``."""
    sent = trio.run(_resend, setup, run_id)
    if json:
        print(msgspec.json.encode(sent).decode())
    else:
        again = "was sent again before, as" if sent.status == "duplicate" else "is sent again, as"
        print(f"{one_line(run_id)} {again} {sent.run_id}")
    return OK


def release_session(setup: Setup, session: str) -> int:
    """Let the next host take up a quarantined session. Raises ``NotFound``."""
    if not trio.run(_release, setup, session):
        raise NotFound(f"the session {session!r} is not quarantined; `motet doctor` lists those")
    print(f"the next host takes {one_line(session)} up again", file=sys.stderr)
    return OK


async def _resend(setup: Setup, run_id: str) -> Sent:
    async with talking(setup.state) as client:
        return msgspec.convert(await client.call("runs.resend", run_id=run_id), Sent)


async def _release(setup: Setup, session: str) -> bool:
    async with writing(setup.state) as run:
        return bool(await run(Statement(RELEASE, (session,))))
