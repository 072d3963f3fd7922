"""``tacitly recommend``: from a table of ratings to recommendations."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from cli.test_cli import run
from tacitly.datasets import make_ratings


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, ratings = tmp_path_factory.mktemp("tables"), make_ratings(300, 20, mean_ratings=8, random_state=0)
    with open(folder / "ratings.csv", "w", newline="") as file:
        cells = zip(ratings.users, ratings.items, ratings.values, strict=True)
        csv.writer(file).writerows([["user", "item", "rating"], *([f"u{u}", f"film {i}", v] for u, i, v in cells)])
    with open(folder / "items.csv", "w", newline="") as file:
        rows = [[f"film {i}", features[1]] for i, features in enumerate(ratings.item_features)]
        csv.writer(file).writerows([["item", "drama"], *rows])
    rows = "u1,film 1,4\n\nu1,film 2,good\nu2,film 1,\nu3,no such film,9\n"
    (folder / "text.csv").write_text(f"user,item,rating\n{rows}")
    return folder


def test_ratings_become_recommendations(
    tables: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "films"
    options = ["--catalogue", tables / "items.csv", "--features", "drama", "--epsilon", 2, "--out", out]
    words = ["recommend", tables / "ratings.csv", *options, "--rating", "rating", "--range", "1,5"]
    code, text, complaint = run(capsys, monkeypatch, *words)
    assert code == 0, complaint
    assert "ε = 2.00" in text
    code, known, complaint = run(capsys, monkeypatch, "recommend", out, "--for", "u7", "-k", 3)
    assert code == 0, complaint
    assert len(known.splitlines()) == 4
    _, new, _ = run(capsys, monkeypatch, "recommend", out, "--rated", "film 1=5,film 2=1", "-k", 2)
    assert new.splitlines()[0] == "item,score"
    assert "film 1," not in new
    _, stranger, said = run(capsys, monkeypatch, "recommend", out, "--for", "nobody", "-k", 2)
    assert len(stranger.splitlines()) == 3
    assert "not among" in said
    code, _, complaint = run(capsys, monkeypatch, "recommend", out, "--rated", "film 1=5,filn 2=1")
    assert code == 2
    assert "not in the catalogue: filn 2" in complaint
    assert run(capsys, monkeypatch, "verify", out)[0] == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["ratings.csv"], "give --catalogue"),
        (["ratings.csv", "--catalogue", "items.csv", "--epsilon", 1, "--rating", "rating"], "needs --range"),
        (["ratings.csv", "--catalogue", "items.csv", "--epsilon", 1, "--range", "1,5"], "is for --rating"),
        (["ratings.csv", "--catalogue", "items.csv", "--epsilon", 1, "--features", "year"], "no column 'year'"),
        (["ratings.csv", "--catalogue", "items.csv", "--epsilon", 1, "--item", "film"], "Name it with --item"),
        (["missing.csv", "--for", "u7"], "there is no"),
        (
            ["text.csv", "--catalogue", "items.csv", "--epsilon", 1, "--rating", "rating", "--range", "1,5"],
            "column 'rating' must be numbers",
        ),
    ],
)
def test_what_is_missing_is_said(
    tables: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    words: list[object],
    message: str,
) -> None:
    placed = [tables / str(word) if str(word).endswith(".csv") else word for word in words]
    code, _, complaint = run(capsys, monkeypatch, "recommend", *placed, "--out", tmp_path / "x")
    assert code == 2
    assert message in complaint
