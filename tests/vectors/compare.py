"""Comparison of facts with an expectation, by the form of the expectation.

A text, list or number is compared with the main fact. Of an object each key is: a form of the main
fact (``len_le``, ``contains``, …), such a form of a named fact (``message_contains``), or the
name of a fact that must be equal. ``<words>`` stand for anything, ``optional_…`` and ``or_error``
for what may be.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from typing import TypeAlias, cast

from tests.vectors.cases import MAIN, Facts

Check: TypeAlias = Callable[[object, object], bool]

_ANYTHING = re.compile(r"<[^<>]+>\Z")


class AllOf(tuple[str, ...]):
    """A main fact of many texts: what is expected must hold for each."""


class AnyOf(tuple[object, ...]):
    """A fact with several names: what is expected must be one of them."""


class InOrder(tuple[object, ...]):
    """A fact in many steps: what is expected are some of them, in this order."""

    def holds(self, expect: Iterable[object]) -> bool:
        rest = iter(self)
        return all(any(same(wanted, step) for step in rest) for wanted in expect)


def differences(expect: object, facts: Facts) -> list[str]:
    """What is not as expected, in words; empty when all is."""
    if not isinstance(expect, dict):
        return [] if same(expect, facts.get(MAIN)) else ["it is another value"]
    fields = cast("dict[str, object]", expect)
    if fields.keys() == {"$digest"}:
        return _digest_differences(fields["$digest"], str(facts.get(MAIN)))
    error = facts.get("error")
    if "or_error" in fields and error is not None:
        allowed = str(fields["or_error"])
        return [] if allowed.split()[0] == error else [f"error is {error!r}, not {allowed!r}"]
    return list(_field_differences(fields, facts))


def same(expect: object, got: object) -> bool:
    """Equal, where ``<words>`` in the expectation stand for anything there is."""
    if isinstance(got, AnyOf):
        return any(same(expect, name) for name in got)
    if isinstance(got, InOrder):
        return isinstance(expect, list) and got.holds(cast("list[object]", expect))
    if isinstance(expect, str) and _ANYTHING.match(expect):
        return got not in (None, "")
    if isinstance(expect, dict) and isinstance(got, str) and "$digest" in expect:
        return not _digest_differences(cast("object", expect["$digest"]), got)
    if isinstance(expect, dict) and isinstance(got, dict):
        left = cast("dict[object, object]", expect)
        right = cast("dict[object, object]", got)
        return left.keys() == right.keys() and all(same(v, right[k]) for k, v in left.items())
    if isinstance(expect, list) and isinstance(got, list | tuple):
        items, found = cast("list[object]", expect), list(cast("Sequence[object]", got))
        return len(items) == len(found) and all(map(same, items, found))
    if isinstance(expect, bool) or isinstance(got, bool):
        return expect is got
    return expect == got


def _field_differences(fields: Mapping[str, object], facts: Facts) -> Iterator[str]:
    for key, wanted in fields.items():
        if key.startswith("optional_") or key == "or_error":
            continue
        if key in facts:
            if not same(wanted, facts[key]):
                yield f"{key} is {facts[key]!r}"
            continue
        name, form = _form(key, facts)
        if form is None:
            yield f"nothing is known of {key!r}"
        elif not _holds(form, facts.get(name), wanted):
            yield f"{key} does not hold for {facts.get(name)!r}"[:300]


def _form(key: str, facts: Facts) -> tuple[str, Check | None]:
    if key in FORMS and MAIN in facts:
        return MAIN, FORMS[key]
    for form, check in FORMS.items():
        name = key.removesuffix(f"_{form}")
        if name != key and name in facts:
            return name, check
    return MAIN, None


def _holds(check: Check, got: object, wanted: object) -> bool:
    if isinstance(got, AllOf):
        return all(check(text, wanted) for text in got)
    return check(got, wanted)


def _words(wanted: object) -> list[str]:
    return (
        [str(w) for w in cast("list[object]", wanted)]
        if isinstance(wanted, list)
        else [str(wanted)]
    )


def _size(got: object) -> int:
    return len(cast("Sized", got)) if isinstance(got, str | list | tuple | dict) else -1


def _number(got: object) -> float:
    return float(got) if isinstance(got, int | float) else float("nan")


def _keys(got: object, wanted: object) -> bool:
    return isinstance(got, dict) and set(cast("dict[str, object]", got)) == set(_words(wanted))


def _is_valid(text: object) -> bool:
    return str(text).encode("utf-8", "replace").decode() == text


FORMS: Mapping[str, Check] = {
    "startswith": lambda got, wanted: str(got).startswith(str(wanted)),
    "endswith": lambda got, wanted: str(got).endswith(str(wanted)),
    "not_contains": lambda got, wanted: not any(word in str(got) for word in _words(wanted)),
    "lacks": lambda got, wanted: not any(word in str(got) for word in _words(wanted)),
    "contains": lambda got, wanted: all(word in str(got) for word in _words(wanted)),
    "mentions": lambda got, wanted: all(word in str(got) for word in _words(wanted)),
    "not_equals": lambda got, wanted: not same(wanted, got),
    "ne": lambda got, wanted: not same(wanted, got),
    "equals": lambda got, wanted: same(wanted, got),
    "len_le": lambda got, wanted: 0 <= _size(got) <= _number(wanted),
    "len_ge": lambda got, wanted: _size(got) >= _number(wanted),
    "len": lambda got, wanted: _size(got) == wanted,
    "chars": lambda got, wanted: _size(got) == wanted,
    "chars_le": lambda got, wanted: 0 <= _size(got) <= _number(wanted),
    "bytes_le": lambda got, wanted: len(str(got).encode()) <= _number(wanted),
    "le": lambda got, wanted: _number(got) <= _number(wanted),
    "ge": lambda got, wanted: _number(got) >= _number(wanted),
    "regex": lambda got, wanted: re.search(str(wanted), str(got)) is not None,
    "matches": lambda got, wanted: re.search(str(wanted), str(got)) is not None,
    "all_match": lambda got, wanted: re.fullmatch(str(wanted), str(got)) is not None,
    "keys": _keys,
    "line_count": lambda got, wanted: len(str(got).split("\n")) == wanted,
    "lines": lambda got, wanted: str(got).split("\n") == wanted,
    "single_line": lambda got, wanted: (len(str(got).splitlines()) <= 1) is wanted,
    "valid_utf8": lambda got, wanted: _is_valid(got) is wanted,
}


def _digest_differences(digest: object, got: str) -> list[str]:
    wanted = cast("dict[str, object]", digest)
    found: dict[str, object] = {
        "runes": len(got),
        "bytes": len(got.encode()),
        "sha256": hashlib.sha256(got.encode()).hexdigest(),
        "prefix": got[: len(str(wanted.get("prefix", "")))],
        "suffix": got[len(got) - len(str(wanted.get("suffix", ""))) :],
    }
    return [f"{key} is {found[key]!r}" for key in wanted if wanted[key] != found.get(key)]
