"""Where the folder of a user is: names that can be undone, and who shares one.

Invariants: two different users never get the same folder, on a file system that tells case apart
or not, whatever characters their names hold; no name leads out of where it stands; a folder's
name gives the user back.
"""

from __future__ import annotations

import re
from typing import Literal, TypeAlias
from urllib.parse import unquote_to_bytes

from motet.protocols.agents import AgentProfile, Sharing

Peer: TypeAlias = Literal["direct", "group"]

SHARED = "=shared"
"""The folder of those who share one; no name of a user is written with that character."""
LONGEST = 200
"""Characters of one folder's name; file systems take 255 bytes."""
GOES_ON = "%"
"""At the end of a name: the rest of it is the name of the folder inside."""

_PLAIN = re.compile(r"[^a-z0-9._-]")


def folder_names(text: str) -> tuple[str, ...]:
    """A text as one folder name, or as several nested ones when it is long.

    Small letters, digits and ``-_.`` stay; all else, also a dot in front, becomes ``%`` and two
    hex digits for each byte of its UTF-8.
    """
    escaped = _PLAIN.sub(_escaped, text)
    if escaped.startswith("."):
        escaped = "%2e" + escaped[1:]
    pieces = [escaped[at : at + LONGEST] for at in range(0, len(escaped), LONGEST)]
    if not pieces:
        return (GOES_ON,)
    return (*(piece + GOES_ON for piece in pieces[:-1]), pieces[-1])


def text_of(names: tuple[str, ...]) -> str:
    """The text that :func:`folder_names` made the names of."""
    whole = "".join([*(name.removesuffix(GOES_ON) for name in names[:-1]), names[-1]])
    return unquote_to_bytes(whole.removesuffix(GOES_ON)).decode("utf-8", "surrogatepass")


def _escaped(found: re.Match[str]) -> str:
    return "".join(f"%{byte:02x}" for byte in found[0].encode("utf-8", "surrogatepass"))


def shares(sharing: Sharing, user: str, peer: Peer) -> bool:
    """Whether a user of a per-user workspace works in the common folder all the same."""
    return user in sharing.users or (sharing.group if peer == "group" else sharing.dm)


def user_folder(agent: str, user: str, profile: AgentProfile, peer: Peer) -> tuple[str, ...]:
    """The folder of a user with an agent, below the workspace of the host."""
    own = folder_names(agent)
    if profile.workspace == "per_user" and shares(profile.sharing, user, peer):
        return (*own, SHARED)
    return (*own, *folder_names(user))
