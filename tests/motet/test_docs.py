"""Every block of code in the README and in docs/ does what the text says."""

import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from motet.actors.hosting.config import load_config
from motet.runtime.diagram import with_tables
from tests import forks
from tests.motet.command import PATIENCE, ROOT, Process, environment, started
from tests.processes import need_sandbox

PAGES = ("README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")))
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)
# A program, and what it prints if a block of text follows at once.
PROGRAM = re.compile(r"^```python\n(.*?)^```$(?:\n\n```text\n(.*?)^```$)?", re.M | re.S)

# What differs from one time to the next.
VARIES = {
    re.compile(r"err_\d{8}_\d{6}_[0-9a-f]{6}"): "<error>",
    re.compile(r"run_[0-9a-f]{12}"): "<run>",
    re.compile(r"esc_[0-9a-f]{12}"): "<escalation>",
    re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"): "<time>",
    re.compile(r"\b[\d.]+ m?s\b"): "<time>",
    re.compile(r"\d\d-\d\d \d\d:\d\d"): "<date>",
    re.compile(r"127\.0\.0\.1:\d+"): "<address>",
    re.compile(r"mtt_[0-9a-f]{32}"): "<token>",
    re.compile(r"(?<=token    in )/\S+(?=;)"): "<token file>",
    re.compile(r"(?<=state    )/\S+|(?<=a person in )/\S+"): "<state>",
    re.compile(r"(?<=\S)  +(?=\S)"): "  ",
    re.compile(r" +$", re.M): "",
}


def blocks(language: str) -> list[tuple[str, str]]:
    """The blocks of a language, each with the page and line where it begins."""
    found: list[tuple[str, str]] = []
    for page in PAGES:
        text = (ROOT / page).read_text("utf-8")
        found += [
            (f"{page}:{text[: block.start()].count(chr(10)) + 1}", block[2])
            for block in BLOCK.finditer(text)
            if block[1] == language
        ]
    return found


def cases(language: str) -> list[object]:
    return [pytest.param(text, id=where) for where, text in blocks(language)]


def programs() -> list[object]:
    """Every Python block. One without imports goes on from those before it on its page."""
    found: list[object] = []
    for page in PAGES:
        text = (ROOT / page).read_text("utf-8")
        before = ""
        for block in PROGRAM.finditer(text):
            alone = re.search("^(import|from) ", block[1], re.M)
            code = block[1] if alone else before + block[1]
            before = code.replace("trio.run(main)\n", "")
            where = f"{page}:{text[: block.start()].count(chr(10)) + 1}"
            found.append(pytest.param(code, block[2], id=where))
    return found


def normal(text: str) -> str:
    for pattern, name in VARIES.items():
        text = pattern.sub(name, text)
    return text.strip()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder such as the text has in mind, apart from where the state is."""
    work = tmp_path / "work"
    work.mkdir()
    (work / "notes.txt").write_text("buy milk\n")
    return work


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Process]:
    with started("serve", "--listen", "127.0.0.1:0", cwd=tmp_path) as process:
        yield process


def test_the_pages_have_code() -> None:
    assert len(blocks("python")) >= 7
    assert len(blocks("console")) >= 5
    assert len(blocks("toml")) >= 3


@pytest.mark.slow
@pytest.mark.parametrize(("code", "says"), programs())
def test_a_python_block_runs(
    code: str, says: str | None, folder: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    env = environment(tmp_path)
    if "MOTET_URL" in code:
        server: Process = request.getfixturevalue("server")
        server.expect("motet serves ")
        env["MOTET_URL"] = server.expect("\n").strip()
        state = Path(env["XDG_STATE_HOME"], "motet")
        env["MOTET_TOKEN"] = (state / "token").read_text().strip()

    ran = forks.ran("-W", "error", "-c", code, cwd=folder, env=env, timeout=PATIENCE)

    assert ran.returncode == 0, ran.stderr
    assert ran.stdout
    assert says is None or normal(ran.stdout) == normal(says)
    assert ran.stderr == ""


@pytest.mark.slow
@pytest.mark.parametrize("text", cases("console"))
def test_a_console_block_shows_what_is_really_printed(
    text: str, folder: Path, tmp_path: Path
) -> None:
    if "shell(" in text:
        need_sandbox()
    for typed in re.split(r"^\$ ", text, flags=re.M)[1:]:
        line, _, expected = typed.partition("\n")
        assert normal(printed(line, folder, tmp_path)) == normal(expected)


def printed(line: str, folder: Path, home: Path) -> str:
    """What a command line prints on both streams; a server's first lines."""
    if line.startswith("motet serve"):
        arguments = line.split()[1:]
        with started(*arguments, cwd=folder, env={"XDG_STATE_HOME": str(home)}) as process:
            process.expect("token    ")
            process.expect("\n")
            return process.seen
    motet = f'motet() {{ {shlex.join(forks.in_a_shell())} -m motet.cli "$@"; }}; {line}'
    ran = subprocess.run(
        ["bash", "-c", motet],
        cwd=folder,
        env=environment(home),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE,
        check=True,
    )
    return ran.stdout


@pytest.mark.parametrize("text", cases("toml"))
def test_a_configuration_block_is_valid(text: str, tmp_path: Path) -> None:
    (tmp_path / "prompt.md").write_text("Be brief.")
    file = tmp_path / "motet.toml"
    file.write_text(text)

    load_config(file, env={"ALICE_TOKEN": "mtt_" + "0" * 32, **os.environ})


@pytest.mark.parametrize("page", PAGES)
def test_the_tables_are_those_of_the_kernel(page: str) -> None:
    text = (ROOT / page).read_text("utf-8")
    assert with_tables(text) == text, f"python -m motet.runtime.diagram {page}"


def test_every_guarantee_has_its_section_and_names_a_test() -> None:
    text = (ROOT / "docs/guarantees.md").read_text("utf-8")
    assert re.findall(r"^## G(\d+) ", text, re.M) == [str(number) for number in range(1, 17)]
    tested = {
        path.name[: len("test_g00_")] for path in (ROOT / "tests/guarantees").glob("test_g*.py")
    }
    assert tested == set(re.findall(r"\(\.\./tests/guarantees/(test_g\d\d_)", text))


def test_the_guarantees_name_all_laws_and_only_tests_that_exist() -> None:
    text = (ROOT / "docs/guarantees.md").read_text("utf-8")
    laws = {path.name for path in (ROOT / "tests/guarantees").glob("test_*.py")}
    assert [name for name in sorted(laws - {"test_branches.py"}) if name not in text] == []
    for line in text.splitlines():
        files = [ROOT / name for name in re.findall(r"tests/[\w/]+\.py", line)]
        code = "".join(path.read_text("utf-8") for path in files)
        named = re.findall(r"`(test_\w+)`", line)
        assert [name for name in named if f"def {name}(" not in code] == []


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_to_a_file(page: str) -> None:
    text = (ROOT / page).read_text("utf-8")
    targets = [t.partition("#")[0] for t in re.findall(r"\]\(([^)]+)\)", text) if "://" not in t]
    assert not [t for t in targets if not ((ROOT / page).parent / t).is_file()]
