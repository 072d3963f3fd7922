"""Draw which room of ``src/tacitly`` imports which: ``python -m tools.import_graph [--check]``.

A room is a folder of the package, or a module that lies beside the folders. The number where the row of A meets the
column of B says how many modules of A import something of B. Imports inside functions count, since they are
dependencies too; those under ``if TYPE_CHECKING`` do not, since nothing is loaded. Every room comes before those
that it imports, so all numbers lie above the diagonal. A cycle is reported instead of drawn.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "tacitly"
PICTURE = ROOT / "docs" / "images" / "import_graph.svg"

Graph = dict[str, dict[str, int]]

ACROSS, DOWN, BOX, HIGH = 78, 46, 116, 30  # from room to room, and a box; in pixels


def module_name(path: Path) -> str:
    """Return the dotted name of a file of the package."""
    return ".".join(("tacitly", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")


def imported(path: Path) -> set[str]:
    """Return the modules of the package that a file imports, by dotted name (``from a import b`` gives a.b)."""
    return {name for name in _imports(ast.parse(path.read_text(encoding="utf-8"))) if name.startswith("tacitly.")}


def _imports(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        children: list[ast.AST] = list(node.orelse)
    else:
        children = list(ast.iter_child_nodes(node))
    if isinstance(node, ast.Import):
        yield from (name.name for name in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module:
        yield from (f"{node.module}.{name.name}" for name in node.names)
    for child in children:
        yield from _imports(child)


def room(name: str) -> str:
    """Return the room of a module; the package's own ``__init__`` and ``__main__`` are the facade.

    >>> room("tacitly.methods.fedrep.kernels"), room("tacitly.linalg"), room("tacitly")
    ('methods', 'linalg', 'tacitly')
    """
    parts = name.split(".")
    return "tacitly" if len(parts) == 1 or parts[1].startswith("__") else parts[1]


def room_graph() -> Graph:
    """Count, for each pair of rooms, the modules of the first that import something of the second."""
    rooms = {room(module_name(path)) for path in PACKAGE.rglob("*.py")}
    graph: defaultdict[str, defaultdict[str, int]] = defaultdict(lambda: defaultdict(int))
    for path in sorted(PACKAGE.rglob("*.py")):
        here = room(module_name(path))
        # A name that is no room is an attribute of the facade: `from tacitly import __version__`.
        there = {room(name) if room(name) in rooms else "tacitly" for name in imported(path)}
        for other in there - {here}:
            graph[here][other] += 1
        graph.setdefault(here, defaultdict(int))
    return {name: dict(sorted(graph[name].items())) for name in sorted(graph)}


def cycle(graph: Graph) -> list[str]:
    """Return a cycle of rooms, first room repeated at the end; empty if there is none."""
    done: set[str] = set()

    def search(path: list[str]) -> list[str]:
        for other in graph.get(path[-1], ()):
            if other in path:
                return [*path[path.index(other) :], other]
            if other not in done and (found := search([*path, other])):
                return found
        done.add(path[-1])
        return []

    for start in graph:
        if start not in done and (found := search([start])):
            return found
    return []


def layers(graph: Graph) -> list[list[str]]:
    """Return rooms by height, lowest first: a room lies one above the highest that it imports."""
    height: dict[str, int] = {}

    def measure(name: str) -> int:
        if name not in height:
            height[name] = 1 + max((measure(other) for other in graph[name]), default=-1)
        return height[name]

    for name in graph:
        measure(name)
    return [sorted(n for n in graph if height[n] == level) for level in range(max(height.values()) + 1)]


def drawn(graph: Graph) -> str:
    """Return the picture: rooms down the diagonal; where the row of one meets the column of another, the count."""
    order = [name for layer in reversed(layers(graph)) for name in layer]
    x = {name: 80 + ACROSS * place for place, name in enumerate(order)}
    y = {name: 40 + DOWN * place for place, name in enumerate(order)}
    wide, high = x[order[-1]] + 80, y[order[-1]] + 40
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" font-family="sans-serif">',
        "<title>Which room of tacitly imports which, and with how many modules</title>",
        f'<rect width="{wide}" height="{high}" fill="#ffffff"/>',
    ]
    edges = [(name, other, count) for name, others in graph.items() for other, count in others.items()]
    lines += [
        f'<path d="M {x[name]} {y[name]} H {x[other]} V {y[other]}" fill="none" stroke="#b9c7d6" '
        f'stroke-width="{_width(count):.1f}"/>'
        for name, other, count in edges
    ]
    for name, other, count in edges:
        lines.append(
            f'<g><title>{count} modules of {name} import {other}</title><circle cx="{x[other]}" cy="{y[name]}" '
            f'r="{8 + _width(count):.1f}" fill="#2f5d92"/><text x="{x[other]}" y="{y[name] + 4}" font-size="12" '
            f'text-anchor="middle" fill="#ffffff">{count}</text></g>'
        )
    for name in order:
        lines.append(
            f'<rect x="{x[name] - BOX // 2}" y="{y[name] - HIGH // 2}" width="{BOX}" height="{HIGH}" rx="6" '
            f'fill="#eef3fa" stroke="#2f5d92"/><text x="{x[name]}" y="{y[name] + 5}" font-size="15" '
            f'text-anchor="middle" fill="#14263d">{name}</text>'
        )
    return "\n".join([*lines, "</svg>"]) + "\n"


def _width(count: int) -> float:
    """Return the width of a line that stands for this many modules."""
    return 0.6 + 0.7 * count**0.5


def main() -> None:
    """Draw the picture, or with ``--check`` say whether the one that is there is up to date."""
    graph = room_graph()
    if found := cycle(graph):
        sys.exit(f"Rooms import each other: {' → '.join(found)}. Move what both need into a lower room.")
    if "--check" not in sys.argv:
        PICTURE.write_text(drawn(graph), encoding="utf-8")
    elif not PICTURE.exists() or PICTURE.read_text(encoding="utf-8") != drawn(graph):
        sys.exit(f"{PICTURE.relative_to(ROOT)} is out of date. Run make generated.")


if __name__ == "__main__":
    main()
