"""Names in policies and calls: groups, patterns, aliases, prefixes, and those nobody has."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from motet.actors.tools.policy.rules import BUILTIN, OWN, Names, fits, grouped, names, stripped
from motet.actors.tools.tool import Tool, tool
from motet.protocols.errors import UnknownName
from motet.protocols.policy import ToolFacts


@tool
def shell() -> str:
    return ""


@tool(name="bash")
def own_bash() -> str:
    return ""


GIT = Tool(name="mcp__git__status", description="", parameters={}, run=shell.run)


@given(st.text("ab*.[", max_size=6), st.text("ab*.[", max_size=6))
def test_a_pattern_knows_one_sign_only(text: str, other: str) -> None:
    """What has no star stands for itself alone; a star is any text, and nothing else is special."""
    assert fits(text, (text,))
    assert fits(f"{text}{other}", (f"{text}*",))
    if "*" not in text:
        assert fits(other, (text,)) == (other == text)


@given(st.text("ab_", max_size=4), st.text("ab_", min_size=1, max_size=4), st.text("ab_"))
def test_what_a_template_adds_is_taken_off(before: str, name: str, after: str) -> None:
    """``stripped`` undoes what a proxy with this template does to a name."""
    assert stripped(f"{before}{{tool_name}}{after}", f"{before}{name}{after}") == name


def test_a_name_that_is_only_a_prefix_stays() -> None:
    assert stripped("proxy_", "proxy_") == "proxy_"
    assert stripped("a{tool_name}a", "a") == "a"
    assert stripped("functions.", "functions.shell") == "shell"


def test_groups_servers_and_patterns_name_tools() -> None:
    facts = ToolFacts("mcp__git__status", ("mcp:git",))
    for text in ("mcp:git", "mcp:*", "mcp__git__*", "*", "mcp__git__status"):
        assert names(text, facts), text
    for text in ("mcp:gi", "git", "group:fs", "mcp__git__", "mcp:git*x"):
        assert not names(text, facts), text


def test_a_tool_without_a_group_is_the_programs_own_or_a_servers() -> None:
    assert Names().facts(shell, ["shell"]).groups == (OWN,)
    assert Names().facts(GIT, []).groups == ("mcp:git",)
    assert grouped({"shell": shell}, {"group:shell": ("shell",)})["shell"].groups == (
        "group:shell",
        BUILTIN,
    )


def test_an_alias_is_another_name_unless_a_tool_has_it() -> None:
    assert "bash" in Names().facts(shell, ["shell"]).aliases
    assert "bash" not in Names().facts(shell, ["shell", "bash"]).aliases
    assert Names().facts(own_bash, ["shell", "bash"]).aliases == ()


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("shell", "shell"),
        ("bash", "shell"),
        ("Bash", "shell"),
        ("functions.shell", "shell"),
        ("functions.bash", "shell"),
        ("default_api.read", "read_file"),
        ("proxy_shell", "shell"),
        ("mcp__git__status", "mcp__git__status"),
        ("rm", "rm"),
        ("functions.rm", "functions.rm"),
        ("ls", "ls"),
    ],
)
def test_a_model_may_call_a_tool_by_other_names(said: str, meant: str) -> None:
    known = ["shell", "read_file", "mcp__git__status"]
    assert Names(prefixes=("proxy", *Names().prefixes)).called(said, known) == meant


def test_a_tool_of_that_name_comes_before_an_alias() -> None:
    assert Names().called("bash", ["bash", "shell"]) == "bash"


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    groups = ("group:fs", "mcp:git", OWN)
    for text in ("shell", "bash", "group:fs", "mcp:git", "mcp__git__log", "delete_*", "mcp:*"):
        Names().check(text, ["shell"], groups)
    for text, near in (("shel", "shell"), ("group:f", "group:fs"), ("mcp:gut", "mcp:git")):
        with pytest.raises(UnknownName, match=f"did you mean '{near}'"):
            Names().check(text, ["shell"], groups)
    for text in ("group:*", "mcp__hub__list", "own"):
        with pytest.raises(UnknownName):
            Names().check(text, ["shell"], groups)
