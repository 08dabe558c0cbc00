"""Builders of the corpus: texts with made-up secrets, put together when the tests run.

So no scanner of repositories takes the files for leaks. A line is a text; what is between ``‹`` and
``›`` is a secret; ``{alphabet:length}`` is random, always the same for the same line.
"""

from __future__ import annotations

import base64
import random
import re
import string
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, cast

MASK = re.compile(r"\[secret:[a-z0-9-]+(?::[0-9a-f]{4})?\]")
"""The mask of a secret, with its kind and its tag."""
CORPUS = Path(__file__).parent / "corpus"
ALPHABETS = {
    "hex": "0123456789abcdef",
    "digit": string.digits,
    "upper": string.ascii_uppercase + "234567",
    "lower": string.ascii_lowercase + string.digits,
    "alnum": string.ascii_letters + string.digits,
    "slug": string.ascii_letters + string.digits + "_-",
    "bech32": "QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L",
    "base64": string.ascii_letters + string.digits + "+/",
}
_PART = re.compile(r"\{(\w+)(?::([\w ]+))?\}")
_SIGNS = {"n": "\n", "r": "\r", "t": "\t"}
_SECRET = re.compile("‹(.*?)›", re.DOTALL)


class Case(NamedTuple):
    """A text of the corpus, and the secrets in it."""

    number: int
    text: str
    secrets: tuple[str, ...]


def cases(name: str) -> Iterator[Case]:
    """The cases of a file, with the numbers of their lines."""
    for number, line in enumerate((CORPUS / name).read_text("utf-8").splitlines(), 1):
        if line and not line.startswith("# "):
            yield Case(number, *without_marks(filled(line, random.Random(line))))


def without_marks(text: str) -> tuple[str, tuple[str, ...]]:
    """The text, and the secrets that were marked in it."""
    return _SECRET.sub(r"\1", text), tuple(_SECRET.findall(text))


def filled(line: str, source: random.Random) -> str:
    line = re.sub(r"(?<!\\)\\([nrt])", lambda sign: _SIGNS[sign[1]], line)
    line = line.replace("\\x1b", "\x1b").replace("\\\\\\n", "\\\n")
    return _PART.sub(lambda part: _made(part, source), line)


def _made(part: re.Match[str], source: random.Random) -> str:
    name, size = part[1], part[2] or ""
    match name:
        case "pw":
            return (
                "".join(source.choices(ALPHABETS["alnum"], k=6)) + source.choice("!#%*+=?") + "x7"
            )
        case "b64plain":
            plain = "\0bob\0" + "".join(source.choices(ALPHABETS["alnum"], k=11))
            return base64.b64encode(plain.encode()).decode()
        case "b64pw":
            plain = "".join(source.choices(ALPHABETS["alnum"], k=16))
            return base64.b64encode(plain.encode()).decode()
        case "b64user":
            plain = "bob:" + "".join(source.choices(ALPHABETS["alnum"], k=11))
            return base64.b64encode(plain.encode()).decode()
        case "pem":
            return key(size, source)
        case "indented":
            return "\n".join(f"    {line}" for line in key(size, source).splitlines())
        case "escaped":
            return key(size, source).replace("\n", "\\n") + "\\n"
        case "cut":
            return "\n".join(key(size, source).splitlines()[:4])
        case _ if name in ALPHABETS and size:
            return random_text(name, int(size), source)
        case _:
            return part.group()


def random_text(alphabet: str, size: int, source: random.Random) -> str:
    """Random, but with a digit and letters of each case that there are, as random texts have."""
    letters = ALPHABETS[alphabet]
    made = source.choices(letters, k=size)
    kinds = [string.digits, string.ascii_lowercase, string.ascii_uppercase]
    wanted = [[c for c in kind if c in letters] for kind in kinds]
    for place, kind in enumerate(kind for kind in wanted if kind):
        if size > 6:
            made[1 + 2 * place] = source.choice(kind)
    if made[-1] in "_-":
        made[-1] = "a"
    return "".join(made)


def key(kind: str, source: random.Random) -> str:
    """A private key of a kind, as PEM."""
    dashes = "-" * 5
    body = [random_text("base64", 64, source) for _ in range(5)] + ["aB3+" * 5 + "w=="]
    return "\n".join([f"{dashes}BEGIN {kind}{dashes}", *body, f"{dashes}END {kind}{dashes}"])


def alike(value: object) -> object:
    """A redacted value in which the masks of all secrets are ``[REDACTED]``."""
    match value:
        case str():
            return MASK.sub("[REDACTED]", value)
        case list():
            return [alike(item) for item in cast("list[object]", value)]
        case dict():
            items = cast("dict[str, object]", value).items()
            return {str(alike(key)): alike(item) for key, item in items}
        case _:
            return value
