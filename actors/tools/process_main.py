"""The program of a process that serves one call of a ``process_tool``.

It is run by path, so that nothing is imported before it has the host's import path: a request on
stdin, the reply on what was stdout. What the function prints goes to stderr, never into the reply.
"""

from __future__ import annotations

import json
import os
import sys


def main() -> None:
    reply = os.fdopen(os.dup(1), "wb")  # a child of the function does not inherit it
    os.dup2(2, 1)
    request = json.load(sys.stdin)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    sys.path[:] = request["path"]
    from motet.actors.tools.process_tool import answer

    reply.write(answer(request["module"], request["name"], request["args"]))
    for stream in (reply, sys.stdout, sys.stderr):
        stream.flush()
    os._exit(0)  # a thread that the function has left behind must not keep the process


if __name__ == "__main__":
    main()
