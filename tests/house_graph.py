"""The import graph of motet: circles of files, and imports that run upwards.

All imports count: those at the top of a module, those inside functions, and those that only a type
checker sees (``TYPE_CHECKING``). import-linter compares packages; this compares files, so that a
package cannot hide a circle inside. The layers come from the contracts in ``pyproject.toml``, so
that their order is written down once.

    python tests/house_graph.py        both lists; exit code 1 when one is not empty
"""

from __future__ import annotations

import ast
import os
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
AREAS = ("actors", "runtime", "testing")
"""The parts of motet for which circles are listed one by one."""
BLOCKS = ("body", "handlers", "orelse", "finalbody", "cases")
"""The fields of a syntax tree that hold statements; a handler and a case hold them one below."""


class Import(NamedTuple):
    """One file imports another; ``line`` is in the importing file."""

    importer: str
    imported: str
    line: int


def modules(root: Path = ROOT) -> dict[str, Path]:
    """Every module of motet by its dotted name; the links in ``motet/`` are followed."""
    found: dict[str, Path] = {}
    for folder, subfolders, names in os.walk(root / "motet", followlinks=True):
        subfolders[:] = [name for name in subfolders if name != "__pycache__"]
        for name in names:
            if name.endswith(".py"):
                path = Path(folder, name)
                parts = path.relative_to(root).with_suffix("").parts
                found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def statements(tree: ast.AST) -> Iterator[ast.stmt]:
    """Every statement below, in the order of the file. Expressions are most of a tree, and hold no
    statement."""
    for part in (getattr(tree, name, ()) for name in BLOCKS):
        for node in part:
            if isinstance(node, ast.stmt):
                yield node
            yield from statements(node)


def imports_of(name: str, path: Path, known: Mapping[str, Path]) -> Iterator[Import]:
    """Every import of a module of motet in one file, wherever in the file it stands."""
    for node in statements(ast.parse(path.read_bytes(), filename=str(path))):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            # ``from package import module`` imports the module; anything else is a name in it.
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            targets = [target if target in known else node.module for target in inner]
        else:
            continue
        for target in dict.fromkeys(targets):
            if target in known and target != name:
                yield Import(name, target, node.lineno)


def graph(root: Path = ROOT) -> list[Import]:
    known = modules(root)
    return [found for name, path in known.items() for found in imports_of(name, path, known)]


def circles(edges: Iterable[Import]) -> list[list[str]]:
    """The strongly connected components of more than one file, the largest first (Tarjan 1972)."""
    graph: dict[str, set[str]] = {}
    for edge in edges:
        graph.setdefault(edge.importer, set()).add(edge.imported)
        graph.setdefault(edge.imported, set())
    try:
        TopologicalSorter(graph).prepare()
    except CycleError:
        return sorted(_components(graph), key=len, reverse=True)
    return []


def _components(graph: Mapping[str, set[str]]) -> Iterator[list[str]]:
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    on_stack: set[str] = set()
    for root in graph:
        if root in order:
            continue
        # Tarjan's search with its own stack: a long chain of imports would exhaust Python's.
        work: list[tuple[str, Iterator[str]]] = []

        def enter(node: str, work: list[tuple[str, Iterator[str]]] = work) -> None:
            order[node] = low[node] = len(order)
            stack.append(node)
            on_stack.add(node)
            work.append((node, iter(sorted(graph[node]))))

        enter(root)
        while work:
            node, rest = work[-1]
            following = next(rest, None)
            if following is None:
                work.pop()
                if work:
                    parent = work[-1][0]
                    low[parent] = min(low[parent], low[node])
                if low[node] == order[node]:
                    component = stack[stack.index(node) :]
                    del stack[-len(component) :]
                    on_stack.difference_update(component)
                    if len(component) > 1:
                        yield sorted(component)
            elif following not in order:
                enter(following)
            elif following in on_stack:
                low[node] = min(low[node], order[following])


def layers(root: Path = ROOT) -> dict[str, int]:
    """The height of each layer, by module prefix, from the contracts of import-linter."""
    config = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))
    heights: dict[str, int] = {}
    contracts = [one for one in config["tool"]["importlinter"]["contracts"] if "layers" in one]
    # The outer contract first: the packages inside of a layer are a finer division of its height.
    for contract in sorted(contracts, key=lambda one: len(one.get("containers", []))):
        prefixes = [f"{container}." for container in contract.get("containers", [])] or [""]
        for height, layer in enumerate(reversed(contract["layers"])):
            for part in layer.replace(":", "|").split("|"):
                for prefix in prefixes:
                    outer = heights.get(prefix[:-1], 0)
                    step = 1 if prefix else 100
                    heights[prefix + part.strip(" ()")] = outer + (height + 1) * step
    return heights


def height(module: str, heights: Mapping[str, int]) -> int | None:
    """The height of a module; None for one that belongs to no layer, such as the front door."""
    while module not in heights:
        module, dot, _ = module.rpartition(".")
        if not dot:
            return None
    return heights[module]


def upward(edges: Iterable[Import], heights: Mapping[str, int]) -> list[Import]:
    """Imports of a module that stands higher than the file that imports it."""
    found: list[Import] = []
    for edge in edges:
        low, high = height(edge.importer, heights), height(edge.imported, heights)
        if low is not None and high is not None and high > low:
            found.append(edge)
    return found


def main() -> int:
    edges = graph()
    found = circles(edges)
    rising = upward(edges, layers())
    for area in AREAS:
        inside = [one for one in found if any(name.startswith(f"motet.{area}") for name in one)]
        print(f"circles in {area}: {[len(one) for one in inside]}")
        for one in inside:
            print("   ", *one)
    print(f"imports that run upwards: {len(rising)}")
    for importer, imported, line in sorted(rising):
        print(f"    {importer}:{line} imports {imported}")
    return 1 if found or rising else 0


if __name__ == "__main__":
    sys.exit(main())
