"""Texts as models write them, artefacts and code included, for the tests of what cleans them."""

from __future__ import annotations

import json
from itertools import pairwise

from hypothesis import strategies as st

WORDS = st.text(alphabet="abAB1 .,é-", max_size=12)
ARTEFACTS = st.sampled_from([
    "<tool_call>", "</tool_call>", '<parameter name="x">', "</parameter>", "<invoke name=y>",
    "[Tool Call: x]", "[Tool Result for x]", "Arguments:", "{", "}", "[Historical context: z]",
    "<think>", "</think>", '<thinking a="b">', "</thinking >", "<THOUGHT>", "</thought>",
    "<think/>", "<final>", "< / FINAL >", "<th", "ink>", "<fi", "nal>", "<tool_", "call>",
    "<｜", "｜>", "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>",
    "<｜User｜>", '{"name": "x", "arguments": {\n  "a": [1]\n}}', '"a": 1,', "</invoke>",
    "<function_calls>",
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


def _pretty(value: object, indent: int | None) -> str:
    return json.dumps(value, indent=indent, ensure_ascii=False)


PAYLOAD = st.recursive(
    st.one_of(st.text(alphabet='ab "\\{}[]<>/\n', max_size=8), st.integers(), st.none()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
    ),
    max_leaves=6,
)
"""What a call says, in JSON's types."""


def _deepseek(words: str, is_old: bool, is_closed: bool) -> str:
    head = (
        f"function<｜tool▁sep｜>x\n```json\n{words}\n```" if is_old else f"x<｜tool▁sep｜>{words}"
    )
    call = f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>SECRET {head}<｜tool▁call▁end｜>"
    return f"{call}<｜tool▁calls▁end｜>" if is_closed else call


def _elements(argument: str, is_whole: bool) -> str:
    call = f'<｜DSML｜invoke name="SECRET">{argument}</｜DSML｜invoke>'
    return f"<｜DSML｜function_calls>{call}</｜DSML｜function_calls>" if is_whole else call


DEEPSEEK = st.one_of(
    st.builds(
        _deepseek,
        st.text(alphabet="ab `~<>/\n{｜", max_size=12),
        st.booleans(),
        st.just(True),
    ),
    st.builds(_elements, st.text(alphabet="ab `~<>/\n{｜", max_size=12), st.booleans()),
)
"""Calls between DeepSeek's tokens."""


def _tagged(name: str, value: object, indent: int | None, is_closed: bool) -> str:
    call = _pretty({"name": "SECRET", "arguments": {"x": value}}, indent)
    return f"<{name}>\n{call}" + (f"\n</{name}>" if is_closed else "")


def _told(value: object, indent: int | None, form: int) -> str:
    call = _pretty({"SECRET": value}, indent)
    return (
        f"[Tool Call: edit]\nArguments:\n{call}",
        f"[Tool Call: edit (ID: 7)]\nArguments: {call}",
        f"[Tool Call: edit]\n{call}",
        f"[Tool Call: {call}]",
    )[form]


INDENTS = st.sampled_from([None, 1, 2, 4])
TOLD_CALLS = st.one_of(
    DEEPSEEK,
    st.builds(
        _tagged,
        st.sampled_from(["tool_call", "function_call", "tool_use", "minimax:tool_call"]),
        PAYLOAD,
        INDENTS,
        st.booleans(),
    ),
    st.builds(_told, PAYLOAD, INDENTS, st.integers(0, 3)),
)
"""Calls that came as text, in the forms of several models."""


def cut_at(text: str, places: list[int]) -> list[str]:
    """The text in chunks, cut at these places as far as it has them."""
    ends = sorted({place % (len(text) + 1) for place in places} | {0, len(text)})
    return [text[a:b] for a, b in pairwise(ends)]


PLACES = st.lists(st.integers(0, 400), max_size=20)
