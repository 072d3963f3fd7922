"""``tacitly trace``: matrix completion and many tasks, from a table to predictions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cli.test_cli import run

M = np.outer([1.0, -2.0, 0.5, 1.5, -1.0, 2.0], [1.0, 0.5, -1.0, 2.0, -0.5])


@pytest.fixture(scope="module")
def ratings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(0)
    rows, columns, users = rng.integers(6, size=20_000), rng.integers(5, size=20_000), np.arange(20_000) % 5000
    path = tmp_path_factory.mktemp("table") / "ratings.csv"
    cells = zip(users, rows, columns, M[rows, columns] + 0.02 * rng.normal(size=20_000), strict=True)
    path.write_text("who,place,item,stars\n" + "".join(f"u{u:04d},{i},{j},{y}\n" for u, i, j, y in cells))
    return path


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(1)
    task, x = rng.integers(6, size=20_000), rng.normal(size=(20_000, 5))
    y = np.sum(M[task] * x, axis=1)
    path = tmp_path_factory.mktemp("table") / "tasks.csv"
    lines = (
        f"{t}," + ",".join(f"{v:.6f}" for v in row) + f",{label:.6f}" for t, row, label in zip(task, x, y, strict=True)
    )
    path.write_text("school,a,b,c,d,e,grade\n" + "\n".join(lines) + "\n")
    return path


SIDES = ["--row", "place", "--column", "item", "--target", "stars"]
SIZES = ["--rows", 6, "--columns", 5]
ASKED = ["--rank", 1, "--epsilon", 4]


@pytest.mark.parametrize(
    ("unit", "label"),
    [(["observation"], '"unit": "row"'), (["user", "--user", "who", "--max-observations", 9], '"unit": "user"')],
)
def test_a_matrix_is_completed_saved_verified_published_and_predicts(
    unit: list[object], label: str, ratings: Path, tmp_path: Path, capsys, monkeypatch
) -> None:  # type: ignore[no-untyped-def]
    model = tmp_path / "model"
    code, out, err = run(capsys, monkeypatch, "trace", ratings, *SIDES, *SIZES, *ASKED, "--unit", *unit, "--out", model)
    assert code == 0, err
    assert "ε = 4.00 (zero-out)" in out
    assert label in (model / "certificate.json").read_text()
    assert "a 6 × 5 matrix" in out
    assert "u0001" not in out + err
    assert float(out.split("explains ")[1].split()[0]) > 0.9
    code, _, _ = run(capsys, monkeypatch, "verify", model)
    assert code == 0
    code, _, _ = run(capsys, monkeypatch, "publish", model, tmp_path / "public")
    assert code == 0
    code, out, _ = run(capsys, monkeypatch, "predict", tmp_path / "public", ratings)
    assert code == 0
    lines = out.split()
    assert lines[0] == "prediction"
    truth = np.loadtxt(ratings, delimiter=",", skiprows=1, usecols=3)
    assert np.mean((np.array(lines[1:], dtype=float) - truth) ** 2) < 0.1 * truth.var()


def test_many_tasks_are_fitted_and_predict(tasks: Path, tmp_path: Path, capsys, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    words = ["--task", "school", "--tasks", 6, "--target", "grade", *ASKED, "--unit", "observation"]
    code, out, err = run(capsys, monkeypatch, "trace", tasks, *words, "--out", tmp_path / "model")
    assert code == 0, err
    assert "a 6 × 5 matrix" in out
    assert float(out.split("explains ")[1].split()[0]) > 0.9
    code, out, _ = run(capsys, monkeypatch, "predict", tmp_path / "model", tasks, "--out", tmp_path / "p.csv")
    assert code == 0
    assert len((tmp_path / "p.csv").read_text().splitlines()) == 20_001
    code, out, _ = run(
        capsys, monkeypatch, "trace", tasks, *words, "--features", "a, b,c", "--no-compare", "--privacy", "labels",
        "--out", tmp_path / "three",
    )  # fmt: skip
    assert code == 0
    assert "a 6 × 3 matrix" in out
    assert "explains" not in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([*SIDES, *ASKED, "--unit", "observation"], "the size of the matrix is public"),
        ([*SIDES, *SIZES, "--rank", 6, "--epsilon", 1, "--unit", "observation"], "smaller side of the matrix (5)"),
        ([*SIDES, *SIZES, *ASKED, "--unit", "user"], "--unit user needs --user"),
        ([*SIDES, *SIZES, *ASKED, "--unit", "observation", "--user", "who"], "--user is for --unit user"),
        ([*SIDES, *SIZES, *ASKED, "--unit", "user", "--user", "place"], "no user's own row"),
        ([*SIDES, *SIZES, *ASKED, "--unit", "table"], "unit must be one of"),
        ([*SIDES, *SIZES, *ASKED, "--unit", "observation", "--task", "place"], "give either --row"),
        (["--target", "stars", *ASKED, "--unit", "observation"], "give either --row"),
        (["--task", "place", "--target", "stars", *ASKED, "--unit", "observation"], "--task needs --tasks"),
        ([*SIDES, *SIZES, "--rank", 1, "--epsilon", -1, "--unit", "observation"], "epsilon must be positive"),
        ([*SIDES[:3], "thing", *SIDES[4:], *SIZES, *ASKED, "--unit", "observation"], "'thing'"),
    ],
)
def test_it_says_what_is_wrong_before_anything_is_spent(
    words: list[object], message: str, ratings: Path, tmp_path: Path, capsys, monkeypatch
) -> None:  # type: ignore[no-untyped-def]
    code, _, err = run(capsys, monkeypatch, "trace", ratings, *words, "--out", tmp_path / "model")
    assert code == 2
    assert message.lower() in err.lower()
    assert not list(tmp_path.iterdir())


def test_a_matrix_has_no_heads(ratings: Path, tmp_path: Path, capsys, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    model = tmp_path / "model"
    code, _, _ = run(
        capsys, monkeypatch, "trace", ratings, *SIDES, *SIZES, *ASKED, "--unit", "observation", "--out", model
    )
    assert code == 0
    code, _, err = run(capsys, monkeypatch, "personalize", model, ratings)
    assert code == 2
    assert "no heads" in err
    code, _, err = run(capsys, monkeypatch, "predict", model, ratings, "--user", "who")
    assert code == 2
    assert "Leave out --user" in err
