"""Skills: front matter, the catalog, search, and the tools."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import motet
from motet.actors.agents.skills import (
    MAX_HEAD,
    MAX_SKILLS,
    BadSkill,
    FrontMatter,
    Skill,
    SkillCatalog,
    best,
    front_matter,
)
from motet.protocols.agents import AgentProfile
from motet.protocols.chat import JsonObject
from tests.scripted import Scripted, call, say


def head(text: str) -> str:
    return f"---\n{text}\n---\n# How\n"


@pytest.mark.parametrize(
    ("text", "description"),
    [
        ("name: a\ndescription: does it", "does it"),
        ('name: "a"\ndescription: "Use when: asked"', "Use when: asked"),
        ("name: a\ndescription: >\n  folded\n  text\n", "folded text"),
        ("name: a\ndescription: |\n  two\n  lines\nlicense: MIT", "two lines"),
        ("description: plain\n  goes on\nmetadata: {tags: [x, y]}\nname: a", "plain goes on"),
    ],
)
def test_front_matter_of_many_styles_is_read(text: str, description: str) -> None:
    assert front_matter(head(text)) == FrontMatter("a", description)
    assert front_matter("\ufeff" + head(text).replace("\n", "\r\n")) == FrontMatter(
        "a", description
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("# no head", "does not begin with a head"),
        ("---\nname: a\ndescription: b\n", "does not begin with a head"),
        (head("name: a"), "missing required field `description`"),
        (head("name: a\ndescription: [x]"), "Expected `str`, got `array`"),
        (head("name: a\ndescription: use: it"), "is not YAML: mapping values"),
        (head("name: ../etc\ndescription: b"), "name '../etc'"),
        (head(f"name: {'a' * 65}\ndescription: b"), "1 to 64"),
        (head("name: a\ndescription: '  '"), "1 to 1024 characters"),
        (head(f"name: a\ndescription: {'b' * 1_025}"), "1 to 1024 characters"),
        (head("- name: a"), "got `array`"),
        (head("name: a\ndescription: !!python/object/apply:os.getcwd []"), "is not YAML"),
        (head(f"description: {'[' * 4_000}{']' * 4_000}"), "in its head"),
    ],
)
def test_broken_front_matter_is_explained(text: str, says: str) -> None:
    with pytest.raises(BadSkill) as refused:
        front_matter(text)
    assert says.casefold() in str(refused.value).casefold()


@given(st.text(max_size=200), st.text(max_size=50))
def test_any_text_is_front_matter_or_explained(text: str, rest: str) -> None:
    """No file makes anything but a front or a ``BadSkill``."""
    for whole in (text, f"---\n{text}\n---\n{rest}"):
        try:
            front_matter(whole[:MAX_HEAD])
        except BadSkill:
            continue


@given(
    st.from_regex(r"[A-Za-z][A-Za-z0-9_.-]{0,20}", fullmatch=True),
    st.text("abc: '\"#é-", min_size=1),
)
def test_what_is_written_as_json_is_read_back(name: str, description: str) -> None:
    """JSON strings are YAML: a name and a description come back, but for their white space."""
    if description.strip():
        quoted = [msgspec.json.encode(text).decode() for text in (name, description)]
        front = front_matter(head(f"name: {quoted[0]}\ndescription: {quoted[1]}"))
        assert front == FrontMatter(name, " ".join(description.split()))


def write(place: Path, name: str, description: str = "does it", text: str = "Do it so.") -> Path:
    folder = place / name
    folder.mkdir(parents=True)
    front = f"---\nname: {name}\ndescription: {description}\n---\n"
    (folder / "SKILL.md").write_text(front + text)
    return folder


def names(catalog: SkillCatalog, profile: AgentProfile) -> dict[str, str]:
    return {skill.name: skill.description for skill in catalog.find(profile).skills}


# Where they are


def test_the_folder_nearest_to_the_agent_wins(tmp_path: Path) -> None:
    for place in ("own", "files/skills", "host"):
        write(tmp_path / place, "everywhere", f"of {place}")
    write(tmp_path / "files/skills", "middle", "of files")
    write(tmp_path / "host", "middle", "of host")
    catalog = SkillCatalog((tmp_path / "host",))
    files, own = str(tmp_path / "files"), (str(tmp_path / "own"),)

    assert names(catalog, AgentProfile()) == {"everywhere": "of host", "middle": "of host"}
    assert names(catalog, AgentProfile(files=files)) == {
        "everywhere": "of files/skills",
        "middle": "of files",
    }
    assert names(catalog, AgentProfile(files=files, skills=own)) == {
        "everywhere": "of own",
        "middle": "of files",
    }
    assert names(catalog, AgentProfile(files=files, skills=())) == {}
    assert not catalog.offers(AgentProfile(skills=()))


def test_broken_skills_are_reported_and_the_others_are_used(tmp_path: Path) -> None:
    write(tmp_path / "skills", "good")
    (tmp_path / "skills/note.txt").write_text("no folder")
    (tmp_path / "skills/.git").mkdir()
    (tmp_path / "skills/empty").mkdir()
    (tmp_path / "skills/headless").mkdir()
    (tmp_path / "skills/headless/SKILL.md").write_text("# nothing")
    gone = str(tmp_path / "gone")

    found = SkillCatalog((tmp_path / "skills",)).find(AgentProfile(skills=(gone,)))

    assert [skill.name for skill in found.skills] == ["good"]
    assert [problem.partition(":")[0] for problem in found.problems] == [
        f"the skills in {gone!r}",
        f"the skill {str(tmp_path / 'skills/empty')!r} is not used",
        f"the skill {str(tmp_path / 'skills/headless')!r} is not used",
    ]


def test_links_out_of_their_folder_are_no_skills(tmp_path: Path) -> None:
    secret = write(tmp_path / "elsewhere", "secret")
    inside = write(tmp_path / "skills", "inside")
    (tmp_path / "skills/link").symlink_to(secret)
    (tmp_path / "skills/alias").symlink_to(inside)
    (tmp_path / "skills/file").mkdir()
    (tmp_path / "skills/file/SKILL.md").symlink_to(secret / "SKILL.md")

    found = SkillCatalog((tmp_path / "skills",)).find(AgentProfile())

    assert [skill.folder for skill in found.skills] == [inside]
    assert ["leads out" in problem for problem in found.problems] == [True, True]


def test_a_wrong_path_costs_no_run_a_minute(tmp_path: Path) -> None:
    for n in range(MAX_SKILLS + 1):
        (tmp_path / f"{n:04}").touch()

    found = SkillCatalog((tmp_path,)).find(AgentProfile())

    assert found.skills == ()
    assert "only its first" in found.problems[0]


# Which fits


def skills(**described: str) -> list[Skill]:
    return [Skill(name, text, Path()) for name, text in described.items()]


def test_a_word_in_a_name_counts_more_and_a_rare_one_too() -> None:
    known = skills(
        deploy="puts a release on the servers",
        release_notes="writes notes of a release",
        invoices="reads and writes bills",
        minutes="writes notes of a meeting",
    )

    def found(query: str) -> list[str]:
        return [skill.name for skill in best(known, query, 3)]

    assert found("a new release") == ["release_notes", "deploy", "minutes"]
    assert found("DEPLOYMENT") == ["deploy"]
    assert found("meeting notes") == ["minutes", "release_notes"]
    assert found("to?") == []


# As an agent has them


async def test_an_agent_reads_a_skill_that_its_prompt_lists(tmp_path: Path) -> None:
    folder = write(tmp_path / "skills", "brew", "makes tea", "1. Boil water, see times.md")
    (folder / "times.md").write_text("green: 2 min")
    (folder / "scripts").mkdir()
    (folder / "scripts/kettle.py").touch()
    model = Scripted(
        call(("use_skill", {"name": "brew"})),
        call(("use_skill", {"name": "brew", "file": "times.md"})),
        say("tea"),
    )
    agent = motet.Agent("host", model=model, skills=[tmp_path / "skills"])

    async with motet.open_host() as host:
        result = await host.run(agent, "tea please")

    first = model.requests[0]
    assert "- brew: makes tea" in first.system
    assert {"use_skill", "skill_search"} <= {spec.name for spec in first.tools}
    said = str(result.rows)
    assert "1. Boil water" in said
    assert "[Other files of this skill: times.md, scripts/kettle.py]" in said
    assert "green: 2 min" in said
    assert result.errors == ()


def use(file: str) -> tuple[str, JsonObject]:
    return "use_skill", {"name": "brew", "file": file}


async def test_no_file_outside_the_folder_of_a_skill_is_read(tmp_path: Path) -> None:
    folder = write(tmp_path / "skills", "brew")
    (tmp_path / "secret.txt").write_text("hunter2")
    (folder / "link.txt").symlink_to(tmp_path / "secret.txt")
    asked = ("../../secret.txt", "link.txt", str(tmp_path / "secret.txt"), "SKILL.md/..")
    model = Scripted(
        call(*(use(file) for file in asked)),
        call(("use_skill", {"name": "brow"})),
        say("no"),
    )
    agent = motet.Agent("host", model=model, skills=[tmp_path / "skills"])

    async with motet.open_host() as host:
        result = await host.run(agent, "go", limits=motet.Limits(tool_errors=None))

    assert len(result.errors) == 5
    assert "hunter2" not in str(result.rows)
    assert "did you mean 'brew'?" in str(result.rows)


async def test_many_skills_are_searched(tmp_path: Path) -> None:
    for n in range(16):
        write(tmp_path, f"skill-{n}", f"turns {n} into gold")
    model = Scripted(call(("skill_search", {"query": "gold of 7"})), say("found"))
    agent = motet.Agent("host", model=model, skills=[tmp_path])

    async with motet.open_host() as host:
        result = await host.run(agent, "gold")

    assert "There are 16 skills" in model.requests[0].system
    assert "skill-3" not in model.requests[0].system
    assert str(result.rows).index("skill-7") < str(result.rows).index("skill-1")


async def test_a_change_on_disk_takes_effect_with_the_next_run(tmp_path: Path) -> None:
    write(tmp_path, "one")
    model = Scripted(say("a"), say("b"))
    agent = motet.Agent("host", model=model, skills=[tmp_path])

    async with motet.open_host() as host:
        await host.run(agent, "hi", session="s")
        write(tmp_path, "two", "is new")
        (tmp_path / "one/SKILL.md").write_text("broken")
        async with host.stream(agent, "hi", session="s") as run:
            warned = [event async for event in run if isinstance(event, motet.Warned)]

    assert "one" in model.requests[0].system
    assert "- two: is new" in model.requests[1].system
    assert "- one" not in model.requests[1].system
    assert ["'---'" in event.message for event in warned] == [True]


async def test_an_agent_without_skills_has_no_trace_of_them(tmp_path: Path) -> None:
    model = Scripted(say("a"), say("b"))
    write(tmp_path, "one")
    config = motet.HostConfig(skills=(str(tmp_path),))

    async with motet.open_host(config=config) as host:
        await host.run(motet.Agent("plain", model=model, skills=[]), "hi")
        await host.run(motet.Agent("other", model=model), "hi")

    assert model.requests[0].tools == ()
    assert "skill" not in model.requests[0].system.casefold()
    assert "- one: does it" in model.requests[1].system


async def test_a_file_has_its_skills_beside_it_or_where_it_says(tmp_path: Path) -> None:
    write(tmp_path / "skills", "beside")
    write(tmp_path / "more", "named")
    (tmp_path / "motet.toml").write_text(
        '[agents.a]\nskills = ["more"]\n[agents.b]\nskills = []\n[agents.c]\n'
    )

    async with motet.open_host(config=tmp_path / "motet.toml") as host:
        offered = {agent.name: "use_skill" in agent.tools for agent in host.agents()}

    assert offered == {"a": True, "b": False, "c": True}
    (tmp_path / "motet.toml").write_text("skills = 5")
    with pytest.raises(motet.ConfigError, match="skills"):
        await motet.open_host(config=tmp_path / "motet.toml").__aenter__()
