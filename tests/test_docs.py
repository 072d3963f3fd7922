"""Pages say what is true: links lead somewhere, functions exist, Python blocks run."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tacitly

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


def headings(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    titles = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)]+)\)", page.read_text(encoding="utf-8")):
        if link.startswith("http"):
            continue
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        assert target.exists(), link
        assert not anchor or anchor in headings(target), link


def test_every_function_of_the_tour_is_where_it_is_said_to_be() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = re.findall(r"\[`([\w.]+)`\]\(\.\./(src/[\w/]+\.py)\)", text)
    assert len(named) > 20
    for name, file in named:
        assert name in definitions(ROOT / file), (name, file)


def definitions(path: Path) -> set[str]:
    """Return the names of a module's functions, classes and methods."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{part.name}" for part in node.body if isinstance(part, ast.FunctionDef)}
    return found


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_papers_are_named_not_numbered(page: Path) -> None:
    written = re.sub(r"<!-- (\S.*?) -->\n.*?<!-- end \1 -->", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert not re.search(r"[Pp]aper 00\d", written)


def names_used_in_pages(page: str) -> dict[str, Any]:
    """Return small data under the names that the Python blocks of a page use without defining them."""
    random = np.random.default_rng(0)
    users, rows, columns = {
        "centaur.md": (6, 6, 784),
        "fedpower.md": (60, 5, 12),
        "low_rank_sparse.md": (12, 10, 8),
        "trace_regression.md": (60, 5, 20),
    }.get(page, (60, 10, 8))
    X = random.uniform(-1, 1, (users * rows, columns))
    y = X[:, 0] + 0.1 * random.normal(size=len(X))
    ids = np.repeat(np.arange(users), rows)
    if page in ("classification.md", "centaur.md"):
        y = (y > 0).astype(np.int64)
    names: dict[str, Any] = {"np": np, "tacitly": tacitly, "X": X, "y": y, "users": ids, "ids": ids, "hospital": ids}
    names |= {"X_new": X[:4], "users_new": ids[:4], "ids_new": ids[:4], "X_mine": X[:rows], "y_mine": y[:rows]}
    if page == "trace_regression.md":
        d1, d2, tasks, d = 5, 4, 6, 3
        names |= {"d1": d1, "d2": d2, "tasks": tasks, "d": d, "X": X.reshape(-1, d1, d2), "ratings": y}
        names |= {"pairs": random.integers(0, 4, (len(y), 2)), "task": random.integers(0, tasks, len(y))}
        names |= {"x": X[:, :d], "a": X[:, :d1], "b": X[:, -d2:]}
    return names


def python_blocks(page: Path) -> list[str]:
    """Return the Python blocks of a page that can run here: no cluster, nothing left out as ``...``."""
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    return [block for block in blocks if "RayEngine" not in block and "=..." not in block]


@pytest.mark.parametrize("page", [page for page in PAGES if python_blocks(page)], ids=lambda page: page.name)
def test_python_blocks_run_as_printed(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names = names_used_in_pages(page.name)
    for block in python_blocks(page):
        exec(compile(block, page.name, "exec"), names)
