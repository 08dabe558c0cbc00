"""A world's view of its own tasks."""

from __future__ import annotations

from collections.abc import Iterator

import trio

__all__ = ["tasks_of"]


def tasks_of(path: str) -> Iterator[str]:
    """The names of the live tasks of the actor at ``path`` and of all below it.

    The task of a system's time limits is not among them: it is the block's, and ends with it.
    """
    root = trio.lowlevel.current_root_task()
    waiting = [] if root is None else [root]
    while waiting:
        task = waiting.pop()
        waiting += [child for nursery in task.child_nurseries for child in nursery.child_tasks]
        own = f"{task.name} ".startswith((f"{path} ", f"{path}/"))
        if own and not task.name.endswith(" (timers)"):
            yield task.name
