"""Networks that are named, not written: folders without code, the command, targets in their own units."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import tacitly
from tacitly import neural
from tacitly.baselines.comparison import LOCAL, MEANS, OURS, SINGLE, TWIN, Line, ranges_option, verdict
from tacitly.cli.main import main
from tacitly.neural.table_network import estimator

SMALL = {"epsilon": 8.0, "widths": (3,), "rounds": 2, "device": "cpu"}


def rows(users: int = 40, each: int = 6) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    X = np.random.default_rng(0).uniform(40, 60, size=(users * each, 3))
    return X, np.arange(users * each) // each


def test_a_folder_of_a_named_network_loads_without_modules_and_answers_in_labels(tmp_path: Path) -> None:
    X, users = rows()
    y = np.where(X[:, 0] > 50, "high", "low")
    model = neural.TableNetwork(classes=("low", "high"), feature_range=(40, 60), **SMALL).fit(X, y, users)
    loaded = tacitly.load(tacitly.save(model, tmp_path / "model"))
    assert set(model.predict(X, users)) <= {"low", "high"}
    assert (loaded.predict(X, users) == model.predict(X, users)).all()
    assert np.allclose(loaded.predict_proba(X, users), model.predict_proba(X, users))
    own = loaded.personalize(X[:6], y[:6])
    assert (own.predict(X[:6]) == model.personalize(X[:6], y[:6]).predict(X[:6])).all()


def test_numbers_are_answered_in_the_units_of_the_target() -> None:
    X, users = rows()
    y = 1000.0 + 10.0 * (X[:, 0] - 50)
    model = neural.TableNetwork(target_range=(900, 1100), feature_range=(40, 60), **SMALL).fit(X, y, users)
    again = model.with_heads_of(tacitly.Cohort.from_arrays(X, y, users))
    assert np.allclose(again.predict(X, users), model.predict(X, users))
    assert np.abs(model.predict(X, users) - y).mean() < 30  # the target's own spread is 58
    assert np.abs(model.personalize(X[:6], y[:6]).predict(X[:6]) - y[:6]).mean() < 30


def test_heads_of_other_rows_stand_on_the_same_public_network() -> None:
    X, users = rows()
    y = (X[:, 0] > 50).astype(int) + 3
    model = neural.TableNetwork(classes=(3, 4), feature_range=(40, 60), **SMALL).fit(X, y, users)
    again = model.with_heads_of(tacitly.Cohort.from_arrays(X, y, users))
    assert np.allclose(again.heads_, model.heads_)
    assert (again.predict(X, users) == model.predict(X, users)).all()


def test_images_load_without_computing_their_filters_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = {"filters": 4, "directions": 8}
    for name in ("image_network", "image_architecture"):
        monkeypatch.setattr(f"{estimator.__name__}.{name}", partial(getattr(estimator, name), **small))
    rng = np.random.default_rng(0)
    y, users = np.arange(80) % 2, np.arange(80) // 8
    X = rng.integers(0, 256, size=(80, 64)) // (1 + y[:, None])
    model = neural.TableNetwork(8.0, classes=(0, 1), shape=(1, 8, 8), feature_range=(0, 255), rounds=1, device="cpu")
    folder = tacitly.save(model.fit(X, y, users), tmp_path / "model")
    monkeypatch.setattr("tacitly.neural.networks.images.public_directions", None)
    assert (tacitly.load(folder).predict(X, users) == model.predict(X, users)).all()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"classes": (0, 1), "target_range": (0, 1)}, "target_range is for numbers"),
        ({"shape": (1, 2, 2)}, "images in classes"),
        ({"classes": (0, 1), "widths": None, "shape": (1, 3, 3)}, "means 9 columns. Found 3"),
        ({"feature_range": (1, 0)}, "the lower first"),
    ],
)
def test_parameters_that_contradict_each_other_are_refused(wrong: dict[str, object], said: str) -> None:
    X, users = rows(4)
    with pytest.raises(ValueError, match=said):
        neural.TableNetwork(**{**SMALL, **wrong}).fit(X, np.arange(24) % 2, users)  # type: ignore[arg-type]


@pytest.fixture
def command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[[str], str]:
    monkeypatch.chdir(tmp_path)

    def run(words: str) -> str:
        monkeypatch.setattr(sys, "argv", ["tacitly", *words.split()])
        with pytest.raises(SystemExit):
            main()
        captured = capsys.readouterr()
        return captured.out + captured.err

    return run


def test_a_stranger_fits_predicts_verifies_and_reports_a_network(command: Callable[[str], str], tmp_path: Path) -> None:
    X, users = rows()
    lines = [f"p{u},{a:.3f},{b:.3f},{c:.3f},{'up' if a > b else 'down'}" for u, (a, b, c) in zip(users, X, strict=True)]
    (tmp_path / "rows.csv").write_text("\n".join(["person,a,b,c,kind", *lines]) + "\n")
    new = [line.replace("p0,", "new,") for line in lines[:6]]
    (tmp_path / "new.csv").write_text("\n".join(["person,a,b,c,kind", *new]) + "\n")
    fit = "fit rows.csv --user person --target kind --epsilon 8 --method networks --feature-range 40:60 --rounds 2"
    assert "leave it out" in command(f"{fit} --classes down,up --engine cuda")
    assert "--shape is for images in classes" in command(f"{fit} --shape 1x8x8")
    said = command(f"{fit} --classes down,up --widths 3")
    assert "ε = 8.00" in said
    assert "accuracy" in said
    assert command("predict model rows.csv --proba").startswith("person,prediction,P(down),P(up),model\np0,")
    assert "head from 6 rows" in command("personalize model new.csv --id new")
    assert "prediction" in command("predict model new.csv --head head.json --proba")
    assert "ok" in command("verify model").lower()
    assert "public edition" in command("report model")
    assert "PRIVATE edition" in command("report model --table rows.csv")


def test_advice_names_options_that_networks_have(command: Callable[[str], str], tmp_path: Path) -> None:
    X, users = rows()
    lines = [f"p{u},{a:.3f},{b:.3f},{'up' if a > b else 'down'}" for u, (a, b, _) in zip(users, X, strict=True)]
    (tmp_path / "rows.csv").write_text("\n".join(["person,a,b,kind", *lines]) + "\n")
    fit = "fit rows.csv --user person --epsilon 8 --method networks --rounds 1 --widths 3"
    said = command(f"{fit} --target kind")
    assert "If these are classes: --classes no,yes (all labels that may occur)." in said
    assert not (tmp_path / "model").exists()
    said = " ".join(command(f"{fit} --target kind --classes down,up").split())
    note, certificate = said.index("no range of the columns was declared"), said.index("ε = ")
    assert note < certificate
    assert "add --feature-range LOW:HIGH, from public knowledge" in said
    assert "--range" not in said
    said = " ".join(command(f"{fit} --target b --exclude kind --no-compare --out numbers").split())
    assert "--feature-range LOW:HIGH (and --target-range LOW:HIGH of the target)" in said
    declared = command(f"{fit} --target kind --classes down,up --feature-range 40:60 --no-compare --out declared")
    assert "was declared" not in declared


@pytest.mark.parametrize(("twin", "said"), [(0.9, "or public ranges (--feature-range)"), (2.0, "declare the columns'")])
def test_a_poor_model_of_undeclared_columns_leads_to_their_range(twin: float, said: str) -> None:
    errors = {MEANS: 1.0, LOCAL: 1.0, SINGLE: 1.0, TWIN: twin, OURS: 2.0}
    lines = [Line(name, "", error, 0.0) for name, error in errors.items()]
    undeclared, declared = neural.TableNetwork(1.0), neural.TableNetwork(1.0, feature_range=(0, 1))
    assert said in verdict(lines, ranges_option(undeclared))  # type: ignore[arg-type]
    assert "range" not in verdict(lines, ranges_option(declared))  # type: ignore[arg-type]
    assert ranges_option(tacitly.MixedEffects(1.0)) == "--range"
    assert ranges_option(tacitly.PrivateFedRep(1, 1.0)) is None


@pytest.mark.parametrize(
    "model",
    [
        neural.Centaur(*neural.mlp(3, (2,), 2), epsilon=1.0, engine="ray"),
        neural.LowRankSparse(1, 1, 1.0, engine="ray"),
    ],
)
def test_networks_say_why_they_stay_in_one_process_and_what_to_do(model: Any) -> None:
    with pytest.raises(ValueError, match=r"a module is code.*neural\.Features"):
        model.fit(np.zeros((4, 3)), np.zeros(4), np.arange(4))
