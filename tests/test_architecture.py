"""Who may import whom, who may draw noise, and the picture of it in the docs."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest
from tools import import_graph

SOURCE = Path(__file__).parents[1] / "src" / "tacitly"
MODULES = {
    ".".join(("tacitly", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in SOURCE.rglob("*.py")
}


@cache
def imports(path: Path) -> frozenset[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{name.name}" for name in node.names}
    return frozenset(found)


@cache
def room_graph() -> dict[str, dict[str, int]]:
    return import_graph.room_graph()


def users_of(module: str) -> set[str]:
    return {
        name for name, path in MODULES.items() if any(i == module or i.startswith(module + ".") for i in imports(path))
    }


def test_no_room_imports_a_room_that_imports_it() -> None:
    assert not import_graph.cycle(room_graph())


def test_a_cycle_between_rooms_would_be_found() -> None:
    graph = {"a": {"b": 1, "d": 1}, "b": {"c": 2}, "c": {"b": 1}, "d": {}}
    assert import_graph.cycle(graph) == ["b", "c", "b"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("def f():\n    from tacitly.data import cohort", {"tacitly.data.cohort"}),
        ("if TYPE_CHECKING:\n    from tacitly.data import cohort", set()),
        ("if TYPE_CHECKING:\n    pass\nelse:\n    import tacitly.linalg", {"tacitly.linalg"}),
        ("import numpy", set()),
    ],
)
def test_imports_count_wherever_they_are_but_for_type_checkers(text: str, expected: set[str], tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text(text, encoding="utf-8")
    assert import_graph.imported(tmp_path / "module.py") == expected


def test_the_picture_of_the_import_graph_is_up_to_date() -> None:
    drawn = import_graph.drawn(room_graph())
    assert import_graph.PICTURE.read_text(encoding="utf-8") == drawn, "Run make generated."


def test_only_noise_draws_noise_and_only_the_door_and_the_planner_know_it() -> None:
    rooms = {"base", "shard", "flower.node", "flower.coordinator"}
    assert users_of("tacitly.privacy.noise") <= {f"tacitly.federation.{room}" for room in rooms}
    assert users_of("opendp") == {"tacitly.privacy.noise"}
    for name, path in MODULES.items():
        text = path.read_text(encoding="utf-8")
        if name != "tacitly.privacy.noise":
            assert "urandom" not in text, name


def test_algorithms_never_hold_a_cohort() -> None:
    for name in MODULES:
        outside = ("estimator", "base", "evaluation", "shared_basis", "targets", "public_design")
        if name.startswith(("tacitly.methods", "tacitly.privacy")) and not name.endswith(outside):
            assert not {"tacitly.data.cohort", "tacitly.federation.local", "tacitly.federation.shard"} & imports(
                MODULES[name]
            ), name


def test_nothing_below_the_methods_imports_them() -> None:
    below = ("tacitly.privacy", "tacitly.federation", "tacitly.data.", "tacitly.heads", "tacitly.simd")
    assert not [name for name in users_of("tacitly.methods") if name.startswith(below)]


def test_privacy_stands_on_nothing_of_ours() -> None:
    for name, path in MODULES.items():
        if name.startswith("tacitly.privacy"):
            ours = {i for i in imports(path) if i.startswith("tacitly.")}
            assert all(i.startswith(("tacitly.privacy", "tacitly.portable")) for i in ours), name


def test_the_second_opinion_shares_no_arithmetic_with_the_first() -> None:
    for part in ("verification", "verdict", "certificate_text", "ledger_comparison", "second_opinion"):
        name = f"tacitly.privacy.{part}"
        assert not any(i.startswith("tacitly.privacy.accounting") for i in imports(MODULES[name])), name


@pytest.mark.parametrize(
    ("package", "room"),
    [
        ("flwr", ("tacitly.federation.flower", "tacitly.deployment")),
        ("ray", "tacitly.federation.ray"),
        ("torch", ("tacitly.neural", "tacitly.federation.cuda")),
        ("transformers", "tacitly.neural.networks.huggingface"),
        ("triton", "tacitly.federation.cuda"),
    ],
)
def test_optional_engines_stay_in_their_rooms(package: str, room: str | tuple[str, ...]) -> None:
    assert all(name.startswith(room) for name in users_of(package))


def test_there_is_no_pickle() -> None:
    for name, path in MODULES.items():
        assert not {"pickle", "cloudpickle", "dill", "joblib"} & imports(path), name
