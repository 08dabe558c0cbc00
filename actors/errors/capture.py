"""Snapshots of errors, taken in microseconds in the event loop and described later in a thread.

Invariants: a snapshot holds no exception, frame or traceback, so that nothing of the failed call
stays alive; after it was taken, no code of others runs. It takes about ``ERROR_LIMIT`` bytes at
most, and is emptied block by block while its record is made. What is made of it is redacted.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple, TypeAlias, cast

import attrs

from motet.actors.errors.classify import (
    FALLBACK_LIMIT,
    Clue,
    classify,
    clues,
    fallback_text,
    kind_lines,
    kind_of,
)
from motet.protocols.chat import JsonObject
from motet.protocols.error_records import PARSED, Given, recorded
from motet.protocols.errors import ErrorType
from motet.protocols.long_texts import BASE_SIZE, FRAMES_SIZE, LongText, Texts, beginnings
from motet.protocols.redaction.redact import redacted_after, redacted_head
from motet.protocols.texts import first_line, shorten, well_formed
from motet.runtime.describe import SUMMARY_LIMIT, Known, error_code, error_text, summarize
from motet.runtime.exceptions import (
    Trace,
    exception_object,
    safe_text,
    sole,
    text_object,
    to_json_types,
    trace_of,
    with_code,
    with_detail,
)
from motet.runtime.outside import foreign_code, foreign_text

NODES = 20_000
"""Values of one error, beyond which the rest is cut: their conversion takes 20 ms."""


@attrs.frozen
class Captured:
    """A snapshot of an error. ``long``: its long texts; ``size``: its bytes, approximately."""

    code: str
    raw: object
    text: object
    clues: tuple[Clue, ...]
    size: int
    long: Sequence[LongText] = ()


def capture(
    error: object, code: str = "", detail: JsonObject | None = None, given: Given | None = None
) -> Captured:
    """A snapshot of an exception, a text, an error object, or any other value. Raises nothing.

    ``detail`` is added to an exception, as in ``serialize_error``. ``given``: the description,
    where the caller has it.
    """
    texts = Texts()
    try:
        with foreign_code:
            if given is not None:
                value = to_json_types(error, texts, NODES)
                return Captured(code, value, given, (), texts.size, texts.long)
            return _captured(error, code, detail, texts)
    except Exception:  # an error object may be unreadable on purpose
        said = _plainly(error)
        return Captured("", {"message": said}, said, (), BASE_SIZE)


def _plainly(error: object) -> str:
    """The name of its class, as Python has it and not as the class says, with its text if any."""
    name = str(vars(type)["__qualname__"].__get__(type(error)))
    with suppress(Exception), foreign_text:
        return f"{name}: {safe_text(error)[:SUMMARY_LIMIT]}"
    return name


def _captured(error: object, code: str, detail: JsonObject | None, texts: Texts) -> Captured:
    if isinstance(error, BaseException):
        error = sole(error)
        found = tuple(clues(error, code))
        made = exception_object(error, texts, trace_of)
        if detail is not None:
            made = with_detail(made, to_json_types(detail, texts, NODES))
        return Captured(code, made, made["message"], found, FRAMES_SIZE + texts.size, texts.long)
    if isinstance(error, str):
        text = texts(error)
        return Captured(code, text, text, (), texts.size, texts.long)
    value = to_json_types(error, texts, NODES)
    return Captured(code, value, None, (), texts.size, texts.long)


@attrs.frozen
class Description:
    """An error in a few words, redacted.

    Attributes:
        blank: it has neither text nor code, so that storing it is useless.
        fallback: the beginning of the error, for a model that gets no id.
    """

    kind: ErrorType
    code: str
    summary: str
    fallback: str
    blank: bool


Made: TypeAlias = tuple[Description, str, str]
"""The description, the raw error as JSON, and the fingerprint."""


class Shared(NamedTuple):
    """Texts and templates of messages of one batch of errors, and parts known for longer."""

    texts: dict[str, str]
    templates: dict[str, str]
    known: Known[Made]


def describe(
    captured: Captured, *, keep_raw: bool = False, shared: Shared | None = None
) -> Description:
    """Describe the beginning of an error."""
    if isinstance(text := captured.text, Given):
        head, _ = redacted_head(text.summary, done=shared and shared.texts)
        summary = shorten(first_line(text.summary if keep_raw else head), SUMMARY_LIMIT)
        return Description(text.kind, captured.code, summary, summary, blank=False)
    (heads, text), lengths = beginnings([captured.raw, text])
    code = first_line(captured.code or ("" if captured.clues else error_code(heads)))
    text = well_formed(error_text(heads) if text is None else str(text))
    head, more = redacted_head(text, done=shared and shared.texts)
    more += lengths.get(text, len(text)) - len(text)
    kind = kind_of(captured.clues) if captured.clues else classify(heads, code)
    return Description(
        kind,
        code,
        summarize(head, code),
        fallback_text(head, code, more, FALLBACK_LIMIT - len(kind_lines(kind))),
        blank=not first_line(head) and not code,
    )


def whole_error(
    captured: Captured, code: str, *, keep_raw: bool = False, shared: Shared | None = None
) -> tuple[str, JsonObject]:
    """As :func:`recorded`. Takes a second for megabytes, and is called once."""
    raw = captured.raw
    if isinstance(raw, LongText) and raw.length <= PARSED:
        raw = raw.beginning
    long = () if isinstance(raw, str) else captured.long
    made = cast("JsonObject", raw) if isinstance(raw, dict) else {"message": raw}
    made = text_object(raw) if isinstance(raw, str) else made
    if isinstance(trace := made.get("traceback"), Trace):
        text = trace.text(shared and shared.known.stacks)
        made = {**made, "traceback": text}
        if shared and not keep_raw and text.startswith(head := trace.head(shared.known.stacks)):
            rest = text.removeprefix(head)
            shared.texts[text] = redacted_after(head, rest, shared.texts, shared.known.heads)
    done = shared and shared.texts
    return recorded(with_code(made, code), long, keep_raw=keep_raw, done=done)
