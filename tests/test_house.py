"""The rules of the house that no linter knows: sizes, layout, packaging. Failures name them all."""

import ast
import json
import os
import re
import subprocess
import sys
import tarfile
import tokenize
import tomllib
import zipfile
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import pytest

from tests import house_graph, house_trace

ROOT = Path(__file__).parent.parent
LAYERS = ("protocols", "runtime", "actors")
FILE_LINES = 600
FUNCTION_LINES = 80
PACKAGES = 13
MOST_FILES, MOST_LINES = 184, 48_500
MOST_FIELDS = 15
QUESTIONS = re.compile(r"(What|Whether|Who|How|Which|Whatever|Whoever|Where)\b")
IGNORED = {"__pycache__"}
# Put together here, or this line would be found too.
POSTPONED = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|XX" + r"X)\b")


def files_below(*folders: str) -> Iterator[Path]:
    """Every file of the folders, each once: links are not followed."""
    for folder in folders:
        for where, subfolders, names in os.walk(ROOT / folder):
            subfolders[:] = [name for name in subfolders if name not in IGNORED]
            yield from (Path(where, name) for name in sorted(names))


def python_files() -> list[Path]:
    files = files_below(*LAYERS, "motet", "tests", "bench", "examples")
    return [path for path in files if path.suffix == ".py"]


def shown(path: Path, line: int = 1) -> str:
    return f"{path.relative_to(ROOT)}:{line}"


class Facts(NamedTuple):
    """The facts about one file that the tests look at; its syntax tree is far larger.

    ``functions``: line, name and length; ``imports``: line and module; ``classes``: line, name and
    the number of mutable fields.
    """

    docstring: str
    is_empty: bool
    functions: tuple[tuple[int, str, int], ...]
    imports: tuple[tuple[int, str], ...]
    classes: tuple[tuple[int, str, int], ...]


@cache
def facts(path: Path) -> Facts:
    """Parsed once for all tests: parsing takes longer than all that is looked for."""
    tree = ast.parse(path.read_bytes(), filename=str(path))
    nodes = list(house_graph.statements(tree))
    return Facts(
        ast.get_docstring(tree) or "",
        not tree.body,
        tuple(
            (node.lineno, node.name, (node.end_lineno or node.lineno) - node.lineno + 1)
            for node in nodes
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        ),
        tuple(imported(nodes)),
        tuple(
            (node.lineno, node.name, len(mutable_fields(node)))
            for node in nodes
            if isinstance(node, ast.ClassDef) and not is_frozen(node)
        ),
    )


def refuse(offenders: Iterable[str]) -> None:
    found = list(offenders)
    assert not found, "\n" + "\n".join(found)


def test_no_file_is_longer_than_600_lines() -> None:
    lengths = {path: len(path.read_bytes().splitlines()) for path in python_files()}
    refuse(f"{shown(p)} has {n}" for p, n in lengths.items() if n > FILE_LINES)


def test_no_function_is_longer_than_80_lines() -> None:
    refuse(
        f"{shown(path, line)} {name} has {length}"
        for path in python_files()
        for line, name, length in facts(path).functions
        if length > FUNCTION_LINES
    )


def test_no_file_has_the_marks_of_a_merge() -> None:
    """No linter reads the documents and the page, where such marks stay unseen."""
    texts = files_below(*LAYERS, "motet", "tests", "bench", "examples", "docs")
    readable = [path for path in texts if path.suffix in (".md", ".py", ".js", ".css", ".html")]
    refuse(
        shown(path, line)
        for path in (*readable, *ROOT.glob("*.md"))
        for line, text in enumerate(path.read_text("utf-8").splitlines(), 1)
        if re.match(r"(<{7}|>{7}) \S", text)
    )


def test_every_module_begins_with_a_docstring() -> None:
    refuse(
        shown(path)
        for path in python_files()
        if not facts(path).is_empty and not facts(path).docstring
    )


def test_no_import_makes_a_circle_or_runs_upwards() -> None:
    """Imports inside functions, and those that only a type checker sees, count too."""
    edges = house_graph.graph()
    refuse(" <-> ".join(circle) for circle in house_graph.circles(edges))
    rising = house_graph.upward(edges, house_graph.layers())
    refuse(f"{one.importer}:{one.line} imports {one.imported}" for one in rising)


def test_actors_has_thirteen_packages_and_a_size_that_can_be_read() -> None:
    folders = [path for path in (ROOT / "actors").iterdir() if (path / "__init__.py").is_file()]
    files = [path for path in files_below("actors") if path.suffix == ".py"]
    lines = sum(len(path.read_bytes().splitlines()) for path in files)
    assert len(folders) == PACKAGES
    assert len(files) <= MOST_FILES
    assert lines <= MOST_LINES


def test_every_package_of_actors_names_its_door() -> None:
    for path in (ROOT / "actors").glob("*/__init__.py"):
        text = facts(path).docstring
        assert "oor" in text, f"{shown(path)} does not say what others import"


def test_no_module_docstring_begins_with_a_question_word() -> None:
    """It names the thing, then its invariants."""
    refuse(
        f"{shown(path)} {text.splitlines()[0]}"
        for path in python_files()
        if QUESTIONS.match(text := facts(path).docstring)
    )


def is_frozen(node: ast.ClassDef) -> bool:
    """A frozen attrs class or msgspec struct, an exception, a protocol: nothing to assign to."""
    described = [ast.unparse(one) for one in (*node.decorator_list, *node.keywords, *node.bases)]
    return any(
        "frozen" in one or one.startswith(("Protocol", "TypedDict", "Enum")) for one in described
    )


def given(value: ast.expr | None) -> bool:
    """Whether a value is what the constructor was given, or a part of it."""
    while isinstance(value, ast.Attribute):
        value = value.value
    return isinstance(value, ast.Name) and value.id not in ("None", "True", "False")


def mutable_fields(node: ast.ClassDef) -> set[str]:
    """The state of a class: the fields that it declares, and those that its constructor makes.

    A collaborator that the constructor is given, and that is never replaced, is no state; the
    fields of a base count there.
    """
    fields = {
        one.target.id
        for one in node.body
        if isinstance(one, ast.AnnAssign)
        and isinstance(one.target, ast.Name)
        and not ast.unparse(one.annotation).startswith(("ClassVar", "Final"))
    }
    kept: set[str] = set()
    replaced: set[str] = set()
    for function in node.body:
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for inner in ast.walk(function):
            if isinstance(inner, ast.Assign | ast.AnnAssign):
                targets = inner.targets if isinstance(inner, ast.Assign) else [inner.target]
                found = {name for one in targets for name in assigned(one)}
                if function.name != "__init__":
                    replaced |= found
                elif given(inner.value):
                    kept |= found
                else:
                    fields |= found
    return fields | (kept & replaced)


def assigned(target: ast.expr) -> Iterator[str]:
    """The attributes of ``self`` that an assignment sets."""
    for inner in ast.walk(target):
        match inner:
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                yield name
            case _:
                pass


def test_no_class_has_more_than_15_mutable_fields() -> None:
    """Such a class is two classes. A frozen one is a record, and may be as wide as its row."""
    refuse(
        f"{shown(path, line)} {name} has {fields}"
        for path in python_files()
        if path.relative_to(ROOT).parts[0] not in ("tests", "bench", "examples")
        for line, name, fields in facts(path).classes
        if fields > MOST_FIELDS
    )


def imported(nodes: Iterable[ast.AST]) -> Iterator[tuple[int, str]]:
    """The absolute name of every module that is imported anywhere in the file, with its line."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.lineno, node.module


def test_a_layer_is_imported_only_through_motet() -> None:
    """`import runtime` finds the same files a second time and makes every class of them anew."""
    refuse(
        f"{shown(path, line)} imports {name}"
        for path in python_files()
        for line, name in facts(path).imports
        if name.partition(".")[0] in LAYERS
    )


def comments(path: Path) -> Iterator[tuple[int, str]]:
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], token.string


def test_no_comment_puts_work_off() -> None:
    refuse(
        f"{shown(path, line)} {text}"
        for path in python_files()
        if POSTPONED.search(path.read_text("utf-8"))
        for line, text in comments(path)
        if POSTPONED.search(text)
    )


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_is_a_relative_link_in_motet(layer: str) -> None:
    link = ROOT / "motet" / layer
    assert link.is_symlink(), f"{shown(link)} is not a link: clone with core.symlinks=true"
    assert os.readlink(link) == f"../{layer}"


INSTALL_FILES = (
    "pyproject.toml",
    "constraints.txt",
    "bench/peers/constraints.txt",
    "package.json",
    "package-lock.json",
    ".npmrc",
)


@pytest.mark.parametrize("name", INSTALL_FILES)
def test_what_is_installed_is_named_and_never_addressed(name: str) -> None:
    assert not re.search(r"://|git\+|\bfile:|\s@\s|\"resolved\"", (ROOT / name).read_text("utf-8"))


PINS, PEERS_PINS = "constraints.txt", "bench/peers/constraints.txt"


def pins(file: str) -> list[str]:
    lines = (ROOT / file).read_text("utf-8").splitlines()
    return [line for line in lines if not line.startswith("#")]


@pytest.mark.parametrize("file", [PINS, PEERS_PINS])
def test_constraints_are_sorted_pins_without_hashes(file: str) -> None:
    found = pins(file)
    refuse(pin for pin in found if not re.fullmatch(r"[a-z0-9-]+==[0-9][0-9a-z.]*", pin))
    assert found == sorted(set(found))


def test_every_requirement_has_a_pin() -> None:
    """The peers have an environment, and so a file, of their own."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras: dict[str, list[str]] = project["optional-dependencies"]
    peers = extras.pop("bench")
    for file, lines in (
        (PEERS_PINS, peers),
        (PINS, chain(project["dependencies"], *extras.values())),
    ):
        wanted = [re.split(r"[\[<>=!~; ]", line)[0] for line in lines]
        names = {name.replace("_", "-").lower() for name in wanted}
        assert names - {"motet"} <= {pin.partition("==")[0] for pin in pins(file)}


def test_every_npm_package_is_locked_at_one_version_with_its_digest() -> None:
    package = json.loads((ROOT / "package.json").read_text("utf-8"))
    wanted: dict[str, str] = package["devDependencies"]
    locked = json.loads((ROOT / "package-lock.json").read_text("utf-8"))["packages"]
    assert locked[""]["devDependencies"] == wanted
    for name, version in wanted.items():
        assert locked[f"node_modules/{name}"]["version"] == version
    assert all("integrity" in entry for path, entry in locked.items() if path)


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the sdist and the wheel, built offline by the hatchling installed here."""
    folder = tmp_path_factory.mktemp("distributions")
    command = [sys.executable, "-m", "hatchling", "build", "--directory", str(folder)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    return folder


def files_to_ship() -> set[str]:
    of_layers = {path.relative_to(ROOT).as_posix() for path in files_below(*LAYERS)}
    door = ROOT / "motet"
    own = {path.name for path in door.iterdir() if path.is_file()}
    folders = [
        f"motet/{path.name}" for path in door.iterdir() if path.name not in (*LAYERS, *IGNORED)
    ]
    own |= {path.relative_to(door).as_posix() for path in files_below(*folders)}
    return {f"motet/{name}" for name in of_layers | own}


@pytest.mark.slow
def test_the_wheel_holds_every_file_of_every_layer(distributions: Path) -> None:
    (wheel,) = distributions.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if name.startswith("motet/")}
    assert held == files_to_ship()
    assert "motet/py.typed" in held


@pytest.mark.slow
def test_the_sdist_holds_what_the_wheel_holds(distributions: Path) -> None:
    (sdist,) = distributions.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = [PurePosixPath(member.name) for member in archive.getmembers() if member.isfile()]
    held = {name.relative_to(name.parts[0]).as_posix() for name in names}
    assert {name for name in held if name.startswith("motet/")} == files_to_ship()
    assert held >= {"LICENSE", "README.md", "pyproject.toml"}


@pytest.mark.slow
def test_the_architecture_says_how_many_files_a_story_executes() -> None:
    """The figures of ``tests/house_trace.py``, in a process of its own: it traces all threads."""
    command = [sys.executable, str(ROOT / "tests" / "house_trace.py")]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    found = dict(re.findall(r"^(.+): (\d+) files", ran.stdout, re.MULTILINE))
    text = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    written = dict(re.findall(r"^\| (.+?):.*? \| (\d+) \|", text, re.MULTILINE))
    assert {story: written[story] for story in house_trace.STORIES} == found
    refuse(
        f"{story} executes {found[story]} files, {most} are allowed"
        for story, most in house_trace.MOST.items()
        if int(found[story]) > most
    )
