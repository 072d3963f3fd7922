"""``tacitly evaluate``: a score on held-out rows that may be published, charged to the account of the model."""

from __future__ import annotations

import errno
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from tacitly.cli.main import app
from tacitly.privacy import home
from tacitly.privacy.ledger import BudgetExceeded, Ledger


def tacitly(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture(autouse=True)
def _own_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TACITLY_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


def tables() -> None:
    """Write a training table and a held-out one with decimal commas, missing cells and a user without a usable row."""
    rng = np.random.default_rng(0)
    lines: dict[str, list[str]] = {"train.csv": [], "held.csv": []}
    for user in range(300):
        level = rng.normal()
        for row in range(6):
            x, place = rng.normal(), "North" if rng.random() < 0.5 else ""
            y = 10 + level + x + rng.normal() / 10
            cells = [f"p{user:03d}", f"{x:.2f}".replace(".", ","), place, f"{y:.2f}".replace(".", ",")]
            if row == 5 and user % 50 == 0:
                cells[3] = "k.A."
            if user == 7 and row > 3:
                cells[3] = ""
            lines["train.csv" if row < 4 else "held.csv"].append(";".join([*cells, "high" if y > 10 else "low"]))
    for name, rows in lines.items():
        Path(name).write_text("\n".join(["person;dose;region;score;level", *rows]) + "\n")


@pytest.fixture
def model() -> Path:
    tables()
    words = ("--user", "person", "--target", "score", "--exclude", "level", "--epsilon", 2, "--no-compare")
    fitted = tacitly("fit", "train.csv", *words)
    assert fitted.exit_code == 0, fitted.output
    return Path("model")


def evaluate(*words: object) -> Result:
    return tacitly("evaluate", "model", "held.csv", "--missing", "k.A.", *words)


def test_a_score_is_released_charged_and_verified(model: Path) -> None:
    dry = evaluate("--epsilon", 1, "--bound", 5, "--dry-run")
    assert dry.exit_code == 0, dry.output
    noise = float(re.search(r"privacy noise of the score: ± ([\d.]+)", dry.output)[1])  # type: ignore[index]
    assert "300 users, 2.0 rows each on average; target: score" in dry.output
    assert "1 of them have no usable row: they count with the largest error" in dry.output
    assert "nothing was spent" in dry.output
    assert not Path("evaluation").exists()
    done = evaluate("--epsilon", 1, "--bound", 5)
    assert done.exit_code == 0, done.output
    said = " ".join(done.output.split())
    assert "these users have spent ε = 2.00 (zero-out, δ = 1e-06); this evaluation brings it to 2.29" in said
    assert "this evaluation: 1.00; everything on this account: 2.29" in said
    score = json.loads(Path("evaluation/evaluation.json").read_text())
    # About 0.3, and noise with a standard deviation of noise/2; ten of them: less than one false alarm in 10^20.
    assert abs(score["loss"] - 0.3) < 5 * noise + 0.3
    assert (score["bound"], score["n_users"], score["measure"]) == (5.0, 300, "mean absolute error")
    certificate = json.loads((model / "certificate.json").read_text())
    assert score["model"] == certificate["files"]["billboard.safetensors"]
    for folder in ("evaluation", "model"):
        verdict = tacitly("verify", folder)
        assert verdict.exit_code == 0, verdict.output
    assert "ok     ledger_words" in verdict.output
    Path("evaluation/evaluation.json").write_text(json.dumps({**score, "loss": 0.01}))
    assert tacitly("verify", "evaluation").exit_code == 1
    assert "exists already" in str(evaluate("--epsilon", 1, "--bound", 5).exception)
    shutil.copy("evaluation/evaluation.json", model)  # a score that its certificate does not list
    assert "not as certified: evaluation.json" in tacitly("verify", model).output


def test_a_score_that_cannot_be_written_is_printed_because_it_is_paid_for(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The score was lost, a part of its folder stayed, and the advice was to run again, as nothing is spent twice."""

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", full)
        found = evaluate("--epsilon", 1, "--bound", 5)
    assert "mean absolute error" in found.output
    assert re.search("No space left on device. The score above is paid for.*charge that too", str(found.exception))
    assert not Path("evaluation").exists()


def test_what_is_wrong_is_said_before_anything_is_read_or_spent(model: Path) -> None:
    assert "give --bound: the largest error in 'score'" in str(evaluate("--epsilon", 1).exception)
    assert "must be finite" in str(evaluate("--epsilon", "inf", "--bound", 5).exception)
    assert "bound must be positive" in str(evaluate("--epsilon", 1, "--bound", -5).exception)
    plain = tacitly("evaluate", "model", "held.csv", "--epsilon", 1, "--bound", 5)
    assert "--missing unknown,-9" in str(plain.exception)
    assert "--classes" not in str(plain.exception)  # the model predicts numbers
    (seen,) = home.known().values()
    with Ledger(seen.path) as account:
        account.limit(2.1)
    beyond = evaluate("--epsilon", 1, "--bound", 5)
    assert isinstance(beyond.exception, BudgetExceeded)
    assert not Path("evaluation").exists()
    with Ledger(seen.path) as account:
        assert account.spent() == pytest.approx(2.0, abs=1e-6)


def test_training_rows_and_a_model_from_elsewhere_are_pointed_out(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("--epsilon", 0.5, "--bound", 5)
    assert "was fitted to these rows" in tacitly("evaluate", "model", "train.csv", *words, "--out", "one").output
    assert "was fitted to these rows" not in evaluate(*words, "--out", "two").output
    monkeypatch.setenv("TACITLY_HOME", "another-machine")
    said = " ".join(evaluate(*words, "--out", "three").output.split())
    assert "the model's own account" in said
    assert "is not on this machine" in said
    notes = json.loads(Path("three/certificate.json").read_text())["notes"]
    assert any("is not counted here" in note for note in notes)


def test_the_share_of_wrong_classes_needs_no_bound(model: Path) -> None:
    words = ("--user", "person", "--target", "level", "--exclude", "score", "--epsilon", 2, "--no-compare")
    fitted = tacitly("fit", "train.csv", *words, "--loss", "logistic", "--classes", "low,high", "--out", "classes")
    assert fitted.exit_code == 0, fitted.output
    found = tacitly("evaluate", "classes", "held.csv", "--epsilon", 2)
    assert found.exit_code == 0, found.output
    assert "share of wrong classes" in found.output
    score = json.loads(Path("evaluation/evaluation.json").read_text())
    assert score["loss"] < 0.5  # noise: below 0.02 · 10 with one false alarm in 10^20
    refused = tacitly("evaluate", "classes", "held.csv", "--epsilon", 2, "--bound", 1, "--out", "b")
    assert "--bound is for numbers and counts" in str(refused.exception)
