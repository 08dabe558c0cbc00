"""The program of a process that serves one call of a ``process_tool``.

It is run by path, so that nothing is imported before it has the host's import path. It reads a
request from stdin and writes the reply to the original stdout; the function prints to stderr.
"""

from __future__ import annotations

import json
import os
import sys


def main() -> None:
    reply = os.fdopen(os.dup(1), "wb")  # not inherited by children of the function
    os.dup2(2, 1)
    request = json.load(sys.stdin)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    sys.path[:] = request["path"]
    from motet.actors.tools.process_tool import answer

    reply.write(answer(request["module"], request["name"], request["args"]))
    for stream in (reply, sys.stdout, sys.stderr):
        stream.flush()
    os._exit(0)  # not kept alive by a thread that the function has left behind


if __name__ == "__main__":
    main()
