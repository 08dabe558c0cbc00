"""Who is called by name in a text: ``@name``, outside of code."""

from __future__ import annotations

import re
from collections.abc import Sequence

_CODE = re.compile(r"```.*?(?:```|\Z)|~~~.*?(?:~~~|\Z)|`[^`\n]*`", re.DOTALL)
EVERYBODY = "all"


def mentioned(text: str, names: Sequence[str]) -> tuple[str, ...]:
    """The names that ``text`` calls, each once, in the order of their first call.

    The longest name wins (``@ann-marie`` does not call ``ann``), case does not count, an address
    (``me@coder``) is no call, and ``@all`` calls everybody.
    """
    if not names or "@" not in text:
        return ()
    known = {name.lower(): name for name in names}
    words = sorted([*known, EVERYBODY], key=len, reverse=True)
    call = re.compile(
        r"(?<![\w@.+-])@(" + "|".join(map(re.escape, words)) + r")(?![\w-]|\.\w)", re.IGNORECASE
    )
    found: dict[str, None] = {}
    for match in call.finditer(_CODE.sub(" ", text)):
        word = match[1].lower()
        for name in [known[word]] if word in known else list(names):
            found.setdefault(name)
    return tuple(found)
