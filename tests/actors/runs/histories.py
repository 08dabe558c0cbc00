"""Transcripts for tests of what a model is sent: valid ones of any shape, and rows in short."""

from __future__ import annotations

from hypothesis import strategies as st

from motet.protocols.chat import AssistantMessage, Call, ChatMessage, ToolMessage, UserMessage


def rows_of(letters: str, size: int = 1) -> tuple[ChatMessage, ...]:
    """``u``: user, ``i``: put into a turn, ``a``: an answer, ``c``: calls, ``t``: a result."""
    made: list[ChatMessage] = []
    for at, letter in enumerate(letters):
        text = f"{at}".ljust(size, letter)
        match letter:
            case "u":
                made.append(UserMessage(text))
            case "i":
                made.append(UserMessage(text, note="injected"))
            case "a":
                made.append(AssistantMessage(text))
            case "c":
                made.append(AssistantMessage(text, _calls_of(letters, at)))
            case _:
                made.append(ToolMessage(f"c{at}", "look", text))
    return tuple(made)


def _calls_of(letters: str, at: int) -> tuple[Call, ...]:
    """A call for each result that follows."""
    end = at + 1
    while end < len(letters) and letters[end] == "t":
        end += 1
    return tuple(Call(f"c{place}", "look", "{}") for place in range(at + 1, end))


sizes = st.sampled_from([0, 1, 30, 700, 5_000])
batches = st.integers(1, 4).map(lambda calls: "c" + "t" * calls)
turns = st.tuples(
    st.just("u"), st.lists(batches | st.sampled_from(["i", "ai"]), max_size=8), st.just("a")
).map(lambda parts: parts[0] + "".join(parts[1]) + parts[2])
letters = st.lists(turns, max_size=6).map("".join)


@st.composite
def histories(draw: st.DrawFn) -> tuple[ChatMessage, ...]:
    """A valid transcript; its end may be open: a row that waits for its answer."""
    shape = draw(letters)
    if draw(st.booleans()) and shape:
        shape = shape.rstrip("a") or shape
    seed = draw(st.lists(sizes, min_size=1, max_size=7))
    rows = rows_of(shape)
    filled: list[ChatMessage] = []
    for at, row in enumerate(rows):
        text = row.text + "x" * seed[at % len(seed)]
        match row:
            case UserMessage():
                filled.append(UserMessage(text, None, row.note))
            case AssistantMessage():
                filled.append(AssistantMessage(text, row.calls))
            case ToolMessage():
                filled.append(ToolMessage(row.call_id, row.name, text))
    return tuple(filled)
