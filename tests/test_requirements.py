"""What `pip install` brings is what the source imports: the tests themselves run with pinned versions of everything."""

from __future__ import annotations

import ast
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
# Modules whose package has another name.
PACKAGE = {"sklearn": "scikit-learn", "dp_accounting": "dp-accounting"}
# Data frames are imported where the caller has them; llvmlite belongs to numba, triton to PyTorch with CUDA.
OTHERS = {"pandas", "polars", "llvmlite", "triton"}


def imported() -> set[str]:
    """Top-level names of all modules that the source imports, anywhere, from outside."""
    found: set[str] = set()
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {name.name.split(".")[0] for name in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.add(node.module.split(".")[0])
    return found - set(sys.stdlib_module_names) - {"tacitly"}


def requirements(extras: bool) -> dict[str, Requirement]:
    lines = list(PROJECT["dependencies"])
    if extras:
        lines += [line for extra in PROJECT["optional-dependencies"].values() for line in extra]
    return {found.name.lower(): found for found in map(Requirement, lines)}


def test_every_imported_library_is_declared() -> None:
    declared = requirements(extras=True)
    missing = {name for name in imported() - OTHERS if PACKAGE.get(name, name).lower() not in declared}
    assert not missing, f"imported, but in no list of pyproject.toml: {sorted(missing)}"


@pytest.mark.parametrize("version", ["0.26.0", "0.29.1"])
def test_the_command_does_not_get_a_typer_without_click(version: str) -> None:
    assert version not in requirements(extras=False)["typer"].specifier
