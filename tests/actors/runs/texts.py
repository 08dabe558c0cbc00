"""Texts as models write them, artefacts and code included, for the tests of what cleans them."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import strategies as st

WORDS = st.text(alphabet="abAB1 .,é-", max_size=12)
ARTEFACTS = st.sampled_from([
    "<tool_call>", "</tool_call>", '<parameter name="x">', "</parameter>", "<invoke name=y>",
    "[Tool Call: x]", "[Tool Result for x]", "Arguments:", "{", "}", "[Historical context: z]",
    "<think>", "</think>", '<thinking a="b">', "</thinking >", "<THOUGHT>", "</thought>",
    "<think/>", "<final>", "< / FINAL >", "<th", "ink>", "<fi", "nal>", "<tool_", "call>",
    "[System Message] s", "MEDIA:/tmp/a.png", "MEDIA:", "[[audio_as_voice]]", "NO_REPLY", "\0",
    "`", "``", "```", "~~~", "`<think>`", "``<final>``", "```py\n", "\n```\n", "<", ">", "\0t0\0",
])  # fmt: skip
SPACES = st.sampled_from(["", " ", "\n", "\n\n", "\n\n\n", "\r\n", "  \n", "\t"])

SOUP = st.lists(st.one_of(WORDS, ARTEFACTS, SPACES), max_size=24).map("".join)
"""Anything, also what no model writes."""

LINE = st.text(alphabet="abcdé .,:;()!", max_size=20)
CODE = st.lists(
    st.one_of(LINE, st.sampled_from(["<think>x</think>", "MEDIA:/a", "[Tool Call: x]", "", "<b>"])),
    max_size=4,
)


def _fence(marks: str, word: str, lines: list[str]) -> str:
    return "\n".join([marks + word, *lines, marks])


def _reasoning(name: str, room: str, words: str) -> str:
    return f"<{name}{room}>{words} SECRET {words}</{name}{room}>"


FENCE = st.builds(
    _fence,
    st.sampled_from(["```", "````", "~~~"]),
    st.sampled_from(["", "py", "json {x}"]),
    CODE,
)
REASONING = st.builds(
    _reasoning,
    st.sampled_from(["think", "Thinking", "thought", "antThinking", "redacted_thinking"]),
    st.sampled_from(["", " "]),
    st.text(alphabet="ab `~<>/\n{", max_size=12),
)


def cut_at(text: str, places: list[int]) -> list[str]:
    """The text in chunks, cut at these places as far as it has them."""
    ends = sorted({place % (len(text) + 1) for place in places} | {0, len(text)})
    return [text[a:b] for a, b in pairwise(ends)]


PLACES = st.lists(st.integers(0, 400), max_size=20)
