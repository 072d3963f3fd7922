"""No import cycles: neither between modules at import time, nor hidden inside functions."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src"
MODULES = {
    ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(SOURCE.rglob("*.py"))
}

ALLOWED: dict[frozenset[str], str] = {}
"""Cycles that still exist (their modules) and why. This list may only get shorter."""


def statements(tree: ast.AST) -> Iterator[ast.stmt]:
    """All import statements, at any depth, except those that only type checkers run."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
            for other in child.orelse:
                yield from statements(ast.Module([other], []))
            continue
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child
        yield from statements(child)


def imported(source: str) -> set[str]:
    """Modules of ours that a source file imports by name."""
    found: set[str] = set()
    for statement in statements(ast.parse(source)):
        if isinstance(statement, ast.Import):
            found |= {name.name for name in statement.names}
        elif isinstance(statement, ast.ImportFrom) and statement.module and not statement.level:
            names = {f"{statement.module}.{name.name}" for name in statement.names}
            # `from package import module` needs the module; anything else is a name inside the package.
            found |= {name if name in MODULES else statement.module for name in names}
    return found & set(MODULES)


def cycles(graph: dict[str, set[str]]) -> set[frozenset[str]]:
    """Strongly connected components with more than one module, or with a module that imports itself (Tarjan)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: set[frozenset[str]] = set()

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in graph[name]:
            if other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            part = stack[stack.index(name) :]
            del stack[stack.index(name) :]
            if len(part) > 1 or name in graph[name]:
                found.add(frozenset(part))

    for name in graph:
        if name not in index:
            visit(name)
    return found


def test_no_module_imports_itself_through_others() -> None:
    graph = {name: imported(path.read_text(encoding="utf-8")) for name, path in MODULES.items()}
    found = cycles(graph)
    assert found == set(ALLOWED), [sorted(cycle) for cycle in found ^ set(ALLOWED)]


def test_modules_import_nothing_relatively() -> None:
    """Relative imports would escape the graph above."""
    for name, path in MODULES.items():
        for statement in statements(ast.parse(path.read_text(encoding="utf-8"))):
            assert not (isinstance(statement, ast.ImportFrom) and statement.level), name


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import tacitly.portable", {"tacitly.portable"}),
        ("from tacitly import portable", {"tacitly.portable"}),
        ("from tacitly.portable import cpu_count", {"tacitly.portable"}),
        ("def late():\n    from tacitly.portable import cpu_count", {"tacitly.portable"}),
        ("if TYPE_CHECKING:\n    import tacitly.portable", set()),
        ("if TYPE_CHECKING:\n    import os\nelse:\n    import tacitly.portable", {"tacitly.portable"}),
    ],
)
def test_imports_are_found_wherever_they_are_made(source: str, expected: set[str]) -> None:
    assert imported(source) == expected


def test_cycles_are_found() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}, "e": {"e"}}
    assert cycles(graph) == {frozenset("abc"), frozenset("e")}
