"""A plan is data, says in one sentence what to expect, and refuses what it cannot mean."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tacitly
from tacitly.cli.main import main
from tacitly.methods import REGISTRY
from tacitly.planning import Line, Plan, Shape
from tacitly.planning.planner import _recommended

SMALL: dict[str, Any] = {"users": 300, "rows": 5, "features": 2, "repeats": 1, "methods": ["mixed-effects"]}


Command = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def found() -> Plan:
    return tacitly.plan(**SMALL, epsilons=(0.05, 20.0))


def made(shares: dict[float, float], needed: dict[float, int | None], *, possible: float = 0.5) -> Plan:
    """Return a plan with these shares, nothing simulated."""
    rest = {"low": 0.0, "high": 1.0, "error": 0.6, "users": 3000, "method": "mixed-effects"}
    return Plan(
        shape=Shape(users=3000, rows=15, features=40),
        source="described",
        delta=1e-6,
        adjacency="zero-out",
        goal=0.9,
        lines=tuple(Line(epsilon=epsilon, share=share, **rest) for epsilon, share in shares.items()),  # type: ignore[arg-type]
        needed={"mixed-effects": needed},
        alone=0.7,
        pooled=0.8,
        possible=possible,
        recommended="mixed-effects" if possible < 0.69 else None,
        splits={},
        left_out={},
        simulated_users=300,
        repeats=3,
    )


def test_much_noise_gives_nothing_and_little_noise_nearly_everything(found: Plan) -> None:
    assert found.line(0.05).share < 0.5 < 0.9 < found.line(20.0).share
    assert found.possible < found.line(0.05).error
    assert found.recommended == "mixed-effects"


def test_rows_without_a_target_share_components() -> None:
    plan = tacitly.plan(users=300, rows=5, features=4, target=False, repeats=1, epsilons=(5.0,))
    assert plan.methods == ("svd",)
    assert plan.possible < plan.alone
    assert plan.line(5.0).share > 0.9


def test_counts_are_planned_too(command: Command) -> None:
    words = (
        "--users",
        300,
        "--rows",
        6,
        "--features",
        2,
        "--epsilon",
        "5",
        "--repeats",
        1,
        "--method",
        "mixed-effects",
    )
    code, out, err = command(*words, "--loss", "poisson", "--mean-count", 3)
    assert code == 0, err
    text = " ".join(out.split())
    assert text.startswith("With 300 users of 6 rows, 2 features and counts, ε = 5 gives")
    assert "Poisson deviances on new rows" in text
    assert "--epsilon 5" not in text or "--loss poisson" in text


def test_the_same_seed_gives_the_same_plan(found: Plan) -> None:
    assert tacitly.plan(**SMALL, epsilons=(0.05, 20.0)).table() == found.table()


def test_more_users_never_give_less_and_the_needed_number_is_between(found: Plan) -> None:
    shares = [found.line(0.05, users=users).share for users in found.user_numbers]
    assert shares == sorted(shares)
    needed = found.needed["mixed-effects"][20.0]
    assert needed is not None
    assert needed < 300


def test_a_plan_is_plain_data(found: Plan) -> None:
    stored = json.loads(json.dumps(found.to_dict()))
    assert stored["lines"] == found.table()
    assert "alone - method at ε" in stored["definition"]
    assert sum(stored["splits"]["mixed-effects"].values()) == pytest.approx(1.0)
    assert stored["shape"]["users"] == 300


def test_a_plan_can_be_drawn(found: Plan, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    found.plot(tmp_path / "plan.svg")
    assert "share of what is possible" in (tmp_path / "plan.svg").read_text(encoding="utf-8").replace("<!-- ", "")


def test_the_sentence_says_what_is_enough_what_is_not_and_what_would_do() -> None:
    plan = made({0.3: -0.1, 1.0: 0.96}, {0.3: 9000, 1.0: 2500})
    assert plan.sentence() == (
        "With 3,000 users of 15 rows and 40 features, ε = 1 gives 96 % of what is possible; ε = 0.3 gives nothing "
        "(90 % with 9,000 users)."
    )


def test_the_sentence_where_no_epsilon_is_enough() -> None:
    plan = made({0.3: 0.0, 1.0: 0.4}, {0.3: 90_000, 1.0: 12_000})
    assert plan.sentence().endswith("ε = 1 gives 40 % of what is possible (90 % with 12,000 users).")


def test_the_method_that_is_recommended_is_the_best_where_the_goal_is_reached_and_the_default_if_hardly_worse() -> None:
    def lines(**shares: tuple[float, float]) -> list[Line]:
        return [
            Line(method=name.replace("_", "-"), epsilon=e, share=share, users=800, low=0.0, high=1.0, error=0.5)
            for name, both in shares.items()
            for e, share in zip((0.3, 1.0), both, strict=True)
        ]

    # The first line is what 800 users of 5 rows and 8 features have: what happens at 0.3 is not what is advised.
    assert _recommended(lines(low_rank_sparse=(0.78, 0.96), mixed_effects=(0.45, 0.95)), 800, 0.9) == "mixed-effects"
    assert _recommended(lines(low_rank_sparse=(0.92, 0.96), mixed_effects=(0.45, 0.97)), 800, 0.9) == "low-rank-sparse"
    assert _recommended(lines(low_rank_sparse=(0.1, 0.8), mixed_effects=(0.3, 0.5)), 800, 0.9) == "low-rank-sparse"


def test_the_sentence_where_there_is_nothing_to_gain() -> None:
    assert "next to nothing to gain by sharing" in made({1.0: 0.0}, {1.0: None}, possible=0.7).sentence()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"rows": None}, "or a sample. Found no rows"),
        ({"noise": 0.8, "levels": 0.5}, "together they must be at most 1. Found 1.4"),
        ({"noise": 40.0}, "noise is a share of variance: it must lie between 0 and 1. Found 40.0"),
        ({"users": 0}, "users must be"),
        ({"rows": (5, 2)}, "the smallest and then the largest one. Found"),
        ({"epsilons": ()}, "at least one ε"),
        ({"epsilons": (float("inf"),)}, "every ε must be a positive number. Found inf"),
        ({"goal": 90}, "between 0 and 1. Found 90"),
        ({"methods": ["fedreb"]}, "there is no method 'fedreb'. Found: mixed-effects"),
        ({"methods": ["recommender"]}, "no method fits. recommender: it is for ratings of items"),
        ({"schema": {"age": {}}}, "features follow from the schema"),
        ({"loss": "absolute"}, "loss must be 'squared', 'logistic' or 'poisson'. Found 'absolute'"),
        ({"loss": "poisson", "classes": 3}, "classes are for loss 'logistic'"),
        ({"loss": "poisson", "noise": 0.0}, "noise must be above 0. Found 0.0"),
        ({"loss": "logistic", "classes": 1}, "at least two different labels"),
    ],
)
def test_what_it_cannot_mean_is_refused_before_anything_is_simulated(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tacitly.plan(**{**SMALL, **changed})


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ({}, {"mixed-effects", "fedrep", "centaur", "low-rank-sparse"}),
        ({"target": False}, {"svd"}),
        ({"loss": "logistic", "classes": 3}, {"mixed-effects", "fedrep"}),
        ({"loss": "poisson"}, {"mixed-effects", "fedrep"}),
    ],
)
def test_every_method_says_how_it_is_simulated_or_why_it_is_not(target: dict[str, Any], expected: set[str]) -> None:
    shape = Shape(users=10, rows=2, features=3, directions=2, **target).to_dict()
    answers = {method.name: method.simulated(shape) for method in REGISTRY.values()}
    assert {name for name, answer in answers.items() if not isinstance(answer, str)} == expected
    for name, answer in answers.items():
        if not isinstance(answer, str):
            REGISTRY[name].build(epsilon=1.0, **answer)


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Command:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")

    def run(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["tacitly", "plan", *map(str, words)])
        with pytest.raises(SystemExit) as stop:
            main()
        captured = capsys.readouterr()
        return int(stop.value.code or 0), captured.out, captured.err

    return run


def test_the_command_prints_the_answer_first_in_eighty_columns(
    command: Command, found: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}
    monkeypatch.setattr("tacitly.planning.plan", lambda **given: asked.update(given) or found)
    code, out, _ = command("--users", 300, "--rows", "2:8", "--features", 2, "--epsilon", "0.05,20")
    assert code == 0
    assert (asked["rows"], asked["epsilons"]) == ((2, 8), [0.05, 20.0])
    assert " ".join(out.split()).startswith(found.sentence())
    assert max(map(len, out.splitlines())) <= 80
    assert "Next: tacitly fit TABLE" in " ".join(out.split())


def test_the_command_prints_json(command: Command, found: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tacitly.planning.plan", lambda **given: found)
    code, out, _ = command("--users", 300, "--json")
    assert code == 0
    assert json.loads(out)["recommended"] == "mixed-effects"


def test_the_command_takes_a_public_sample(command: Command) -> None:
    from pyarrow.csv import write_csv

    write_csv(tacitly.datasets.load_visits(40), "public.csv")
    words = ("--users", 200, "--sample", "public.csv", "--epsilon", "5", "--repeats", 1, "--method", "mixed-effects")
    code, out, err = command(*words, "--user", "patient", "--target", "score", "--json")
    assert code == 0, err
    assert json.loads(out)["source"] == "sample"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--rows", "many"), "--rows must be a number such as 15, or a range such as 5:20. Found 'many'"),
        (("--epsilon", "1;3"), "--epsilon must be numbers with commas"),
        (("--sample", "x.csv"), "a --sample needs --user and --target"),
        (("--rows", "3"), "Found no features"),
    ],
)
def test_mistakes_are_one_sentence(command: Command, words: tuple[str, ...], message: str) -> None:
    code, _, err = command("--users", 300, *words)
    assert code == 2
    assert message in " ".join(err.split())
