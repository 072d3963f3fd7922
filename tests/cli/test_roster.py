"""Who is on the roster does not depend on what private cells hold: n is public, for every method and on disk too."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import tacitly
from cli.test_cli import run
from tacitly.cli.reading import Columns, read_cohort
from tacitly.data.cohort import Cohort
from tacitly.data.tables import open_table
from tacitly.data.validation import DataError
from tacitly.federation import wire
from tacitly.federation.flower.kept_heads import digest_of
from tacitly.methods import REGISTRY

USERS = 30
SILENT = ["u04", "u29"]


def rows(silent: list[str] = SILENT, cell: Any = np.nan) -> pd.DataFrame:
    """Rows with two classes as target; every target of ``silent`` users is ``cell``, and one of another user's."""
    rng = np.random.default_rng(0)
    who = np.repeat([f"u{i:02d}" for i in range(USERS)], 4)
    frame = pd.DataFrame({"who": who, "a": rng.normal(size=len(who)), "b": rng.normal(size=len(who))})
    frame["y"] = (frame["a"] > 0).astype(object)
    frame["y"] = frame["y"].astype(int).astype(object)
    if silent:
        frame.loc[frame["who"].isin(silent) | (frame.index == 0), "y"] = cell
    return frame


def grouped(frame: pd.DataFrame, path: Path, *, schema: Any = None, folder: Path | None = None) -> Cohort:
    frame.to_csv(path, index=False)
    columns = Columns("who", "y")
    return read_cohort(open_table(path, "who"), columns, schema, drop_missing=False, folder=folder)


@pytest.mark.parametrize("schema", [None, {}], ids=["numbers", "schema"])
@pytest.mark.parametrize("on_disk", [False, True], ids=["memory", "disk"])
def test_a_user_without_a_target_keeps_one_empty_row(tmp_path: Path, schema: Any, on_disk: bool) -> None:
    folder = tmp_path / "grouped" if on_disk else None
    cohort = grouped(rows(), tmp_path / "t.csv", schema=schema, folder=folder)
    assert cohort.users.tolist() == [f"u{i:02d}" for i in range(USERS)]
    assert cohort.n_rows == 4 * USERS - 1 - 3 * len(SILENT)
    silent = cohort.index_of(SILENT)
    assert np.diff(cohort.offsets)[silent].tolist() == [1, 1]
    assert np.isnan(cohort.X[cohort.offsets[silent]]).all()
    assert np.isnan(np.asarray(cohort.y)).sum() == len(SILENT)


def test_mistakes_are_still_told_to_whoever_holds_the_table(tmp_path: Path) -> None:
    frame = rows()
    frame["a"] = frame["a"].astype(object)
    frame.loc[5, "a"], frame.loc[0, "a"] = "S3CR3T", "not counted: its row has no target"
    with pytest.raises(DataError, match=r"column 'a': 1 row not numbers") as caught:
        grouped(frame, tmp_path / "t.csv")
    assert "S3CR3T" not in str(caught.value)
    frame.loc[5, "a"] = None
    with pytest.raises(DataError, match=r"column 'a': 1 row missing"):
        grouped(frame, tmp_path / "t.csv")
    with pytest.raises(DataError, match=r"target column 'y': 9 rows not numbers"):
        grouped(rows(cell="S3CR3T"), tmp_path / "t.csv")
    with pytest.raises(DataError, match=r"no numbers in target column 'y'"):
        grouped(rows().assign(y=""), tmp_path / "t.csv")


def test_rows_with_any_missing_cell_leave_on_request_and_users_stay(tmp_path: Path) -> None:
    frame = rows([])
    frame.loc[frame["who"].isin(SILENT), "a"] = np.nan
    frame.to_csv(tmp_path / "t.csv", index=False)
    source = open_table(tmp_path / "t.csv", "who")
    for schema in (None, {}):
        cohort = read_cohort(source, Columns("who", "y"), schema, drop_missing=True, folder=None)
        assert (cohort.n_users, cohort.n_rows) == (USERS, 4 * USERS - 3 * len(SILENT))


def test_rows_without_a_user_are_nobodys_and_leave_on_request(tmp_path: Path) -> None:
    frame = rows()
    frame.loc[[7, 9], "who"] = ""
    with pytest.raises(DataError, match=r"2 rows without a user.*--drop-missing leaves them out"):
        grouped(frame, tmp_path / "t.csv")
    source = open_table(tmp_path / "t.csv", "who")
    cohort = read_cohort(source, Columns("who", "y"), {}, drop_missing=True, folder=None)
    assert cohort.n_users == USERS


PARAMETERS: dict[str, dict[str, Any]] = {
    "margin": {"classes": [0, 1], "delta": 0.0},
    "svd": {"unit": "user"},
    "trace": {"unit": "user", "design": "tasks", "shape": (2, 1), "max_observations": 4},
    "neural-centaur": {},
}


def estimator(name: str) -> Any:
    method = REGISTRY[name]
    if method.network:
        torch = pytest.importorskip("torch")
        if name == "networks":
            return method.build(widths=(3,), epsilon=4.0, rounds=1, device="cpu")
        if "centaur" in name:
            body = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Tanh())
            return method.build(body=body, head=torch.nn.Linear(3, 2), epsilon=4.0, rounds=1, device="cpu")
        return method.build(rank=1, sparsity=1, epsilon=4.0, hidden=(3,), rounds=1, device="cpu")
    small = dict(method.small(2, 1, PARAMETERS.get(name, {})))
    return method.build(**{**small, "epsilon": 4.0, **PARAMETERS.get(name, {})})


@pytest.mark.parametrize("name", [name for name, method in REGISTRY.items() if method.class_name != "Recommender"])
def test_the_certified_number_of_users_is_the_number_of_ids_whatever_the_targets_hold(
    name: str, tmp_path: Path
) -> None:
    method = REGISTRY[name]
    cohort = grouped(rows(), tmp_path / "t.csv", schema={} if method.takes_schema else None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = estimator(name).fit(cohort)
    assert (cohort.n_users, model.certificate_.n_users) == (USERS, USERS)
    assert math.isfinite(model.certificate_.epsilon)
    if method.command != "fit":
        return
    silent = cohort.index_of(SILENT)  # they have a model: finite numbers whatever they gave
    assert np.isfinite(model.heads_[silent]).all()
    if method.network:  # whose home work is code, which does not travel
        return
    work = model._home_work()
    kept = tacitly.load(tacitly.save(model, tmp_path / "model"))
    assert digest_of(wire.decode(wire.encode(work))) == digest_of(kept._home_work())


def test_somebody_whose_ratings_are_all_outside_the_catalogue_or_missing_counts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rng, lines = np.random.default_rng(0), ["user,item,rating"]
    lines += [f"u{user},film{rng.integers(6)},{rng.integers(1, 6)}" for user in range(48) for _ in range(5)]
    lines += ["other,elsewhere,3", "other,nowhere,4", "silent,film1,"]
    Path("ratings.csv").write_text("\n".join(lines) + "\n")
    Path("items.csv").write_text("item\n" + "".join(f"film{i}\n" for i in range(6)))
    words = ["--catalogue", "items.csv", "--epsilon", 4, "--rating", "rating", "--range", "1,5", "--out", "films"]
    code, _, complaint = run(capsys, monkeypatch, "recommend", "ratings.csv", *words)
    assert code == 0, complaint
    assert '"n_users": 50' in Path("films/certificate.json").read_text()


def test_a_site_tells_everybody_who_is_in_its_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows().to_csv("t.csv", index=False)
    words = ["join", "north", "--table", "t.csv", "--user", "who", "--target", "y", "--name", "north"]
    code, out, complaint = run(capsys, monkeypatch, *words)
    assert code == 0, complaint
    assert f"{USERS} users" in out
    code, _, complaint = run(capsys, monkeypatch, *words[:1], "south", *words[2:], "--tell-rows")
    assert code != 0
    assert "missing" in complaint
