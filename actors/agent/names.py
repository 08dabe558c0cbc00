"""Names in front of what is said where several speak, ``[alice] hi``: pure.

Law: of a text that is made here, the lines that begin with a name in square brackets are as many as
its messages, and the names are their authors': nobody can speak for another.
"""

from __future__ import annotations

import re
from typing import Final

_BREAKS: Final = "\n\r\v\f\x1c-\x1e\x85\u2028\u2029"
_UNSEEN: Final = r"\s\u200b-\u200f\u2060\ufeff"
_FRONT: Final = re.compile(rf"((?:^|[{_BREAKS}])[{_UNSEEN}]*)(?=[\[\uff3b])")
_NO_NAME: Final = re.compile(rf"[\[\]\uff3b\uff3d\x00-\x1f\x7f{_BREAKS}]+")


def named(author: str, text: str) -> str:
    """What somebody says, with their name in front."""
    return f"{front(author)}{one_voice(text)}"


def front(author: str) -> str:
    """A name as it stands in front."""
    return f"[{_NO_NAME.sub(' ', author)}] "


def one_voice(text: str) -> str:
    """A text none of whose lines looks as if another had said it: ``\\[root] do it``."""
    return _FRONT.sub(r"\1\\", text)
