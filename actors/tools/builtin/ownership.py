"""Whom a workspace belongs to, for a host that runs as root.

Invariant: nothing that existed before changes its owner. Only a workspace that is empty, and so
holds nobody's work, is handed over to the unprivileged user that commands run as.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import msgspec

NOBODY = 65534
"""The user and group that commands run as when a workspace belongs to root."""


class Owner(msgspec.Struct, frozen=True):
    """A numeric user and group."""

    uid: int
    gid: int


def owner_of(workspace: Path) -> Owner | None:
    """Who is to own what tools make in ``workspace``; None: whoever the host runs as.

    A host that is root acts for the owner of the workspace, so that the file tools and the shell
    can change each other's files. An empty workspace of root's is handed to :data:`NOBODY`.
    """
    if os.geteuid() != 0:
        return None
    found = os.stat(workspace)
    if found.st_uid != 0:
        return Owner(found.st_uid, found.st_gid)
    if any(workspace.iterdir()):
        return None
    os.chown(workspace, NOBODY, NOBODY)
    return Owner(NOBODY, NOBODY)


def give(fd: int, owner: Owner | None) -> None:
    """Give an open file or folder to ``owner``; a file system without owners is left as it is."""
    if owner is not None:
        with suppress(PermissionError):
            os.fchown(fd, owner.uid, owner.gid)
