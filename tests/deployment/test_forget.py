"""Deletion: rows and head are gone, everybody else's stay, and the statement is true."""

from __future__ import annotations

import json
import math
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import tacitly
from tacitly.cli.main import app
from tacitly.data.cohort import Cohort
from tacitly.deployment.forget import forget

DATA = tacitly.datasets.make_shared_subspace(60, 4, 1, 6, random_state=0)
IDS = np.array([f"patient-{user}" for user in DATA.users])


def holds(folder: Path, word: bytes) -> bool:
    return any(word in file.read_bytes() for file in folder.rglob("*") if file.is_file())


def test_a_head_is_gone_and_the_others_predict_as_before(tmp_path: Path) -> None:
    model = tacitly.PrivateFedRep(rank=1, epsilon=4.0).fit(DATA.X, DATA.y, IDS)
    folder = tacitly.save(model, tmp_path / "model")
    assert holds(folder / "private", b"patient-17")
    done = CliRunner().invoke(app, ["forget", "patient-17", str(folder)])
    assert done.exit_code == 0, done.output
    assert "removed 1 of 60 heads" in done.output
    assert "promises ε = 4.00" in done.output
    assert not holds(folder, b"patient-17")
    loaded, others = tacitly.load(folder), IDS != "patient-17"
    assert (loaded.predict(DATA.X[others], IDS[others]) == model.predict(DATA.X[others], IDS[others])).all()
    assert "patient-17" not in loaded.users_
    assert (folder / "private" / "heads.safetensors").stat().st_mode & 0o777 == 0o600
    assert "has no head in it" in forget("patient-17", folder)[0]
    assert CliRunner().invoke(app, ["verify", str(folder)]).exit_code == 0


def test_what_a_user_rated_is_gone_and_the_others_have_seen_what_they_saw(tmp_path: Path) -> None:
    ratings = tacitly.datasets.make_ratings(60, 10, random_state=0)
    model = tacitly.Recommender(epsilon=math.inf, items=ratings.item_ids, rating_range=(1, 5))
    with pytest.warns(tacitly.UncertifiedWarning):
        model.fit(ratings.users, ratings.item_ids[ratings.items], ratings.values)
    folder, gone = tacitly.save(model, tmp_path / "model"), model.users_[17]
    assert "removed 1 of 60 heads" in forget(str(gone), folder)[0]
    loaded = tacitly.load(folder)
    assert len(loaded.rated_) == len(model.rated_) - len(model._seen(17))
    others = model.users_[model.users_ != gone]
    assert loaded.users_.tolist() == others.tolist()
    for user in others:
        before, after = (one.recommend(user, k=10) for one in (model, loaded))
        assert before.items.tolist() == after.items.tolist()


@pytest.mark.parametrize("calls", range(3))
def test_an_interrupted_deletion_leaves_no_rows_behind_once_it_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: int
) -> None:
    """Killed between two renames, or before the last step: the rows stayed in a hidden folder, and were not found."""
    folder, left = tmp_path / "rows", iter(range(calls))
    Cohort.from_arrays(DATA.X, DATA.y, IDS).save(folder)

    def dying(work):  # type: ignore[no-untyped-def]
        def step(*arguments, **options):  # type: ignore[no-untyped-def]
            if next(left, None) is None:
                raise KeyboardInterrupt
            return work(*arguments, **options)

        return step

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", dying(Path.rename))
        patch.setattr("shutil.rmtree", dying(shutil.rmtree))
        with pytest.raises(KeyboardInterrupt):
            forget("patient-17", folder)
    forget("patient-17", folder)
    forget("patient-18", folder)
    assert [path.name for path in tmp_path.iterdir()] == ["rows"]
    assert Cohort.open(folder).n_users == 58


def test_rows_are_gone_from_grouped_rows(tmp_path: Path) -> None:
    cohort = Cohort.from_arrays(DATA.X, DATA.y, IDS)
    cohort.save(tmp_path / "rows")
    secret = cohort.rows(int(cohort.index_of(["patient-5"])[0]))[0].tobytes()
    assert holds(tmp_path, secret)
    assert "59 users stay" in forget("patient-5", tmp_path / "rows")[0]
    assert not holds(tmp_path, secret)
    assert not holds(tmp_path, b"patient-5\\0")
    after = Cohort.open(tmp_path / "rows")
    assert (after.n_users, after.n_rows) == (59, cohort.n_rows - 6)
    assert int(after.index_of(["patient-5"])[0]) == -1
    assert (after.rows(0)[0] == cohort.rows(0)[0]).all()
    assert "no rows of this user" in forget("nobody", tmp_path / "rows")[0]
    assert [path.name for path in tmp_path.iterdir()] == ["rows"]


def test_a_site_forgets_rows_head_and_count(tmp_path: Path) -> None:
    from tacitly.deployment.join import personalize, prepare

    site = tmp_path / "north"
    prepare(site, "north", Cohort.from_arrays(DATA.X, DATA.y, IDS))
    model = tacitly.PrivateFedRep(rank=1, epsilon=4.0).fit(DATA.X, DATA.y, IDS)
    model.feature_names_in_ = np.array(Cohort.open(site / "cohort").feature_names)
    personalize(site, model)
    lines = forget("patient-3", site)
    assert any("removed this user's head" in line for line in lines)
    assert json.loads((site / "card.json").read_text())["users"] == 59
    with np.load(site / "heads.npz") as heads:
        assert len(heads["users"]) == len(heads["heads"]) == 59
        assert "patient-3" not in heads["users"]


def test_deletions_at_the_same_time_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each removed the drafts of the other as those of an interrupted one, and with them everybody's rows."""
    monkeypatch.setenv("TACITLY_HOME", str(tmp_path / "home"))
    folder, save, others = tmp_path / "rows", Cohort.save, list[threading.Thread]()
    Cohort.from_arrays(DATA.X, DATA.y, IDS).save(folder)

    def slow(cohort: Cohort, target: Path) -> None:
        save(cohort, target)
        if not others:
            others.append(threading.Thread(target=forget, args=("patient-18", folder)))
            others[0].start()
            others[0].join(0.5)

    monkeypatch.setattr(Cohort, "save", slow)
    forget("patient-17", folder)
    others[0].join()
    assert Cohort.open(folder).n_users == 58


def test_a_link_to_rows_is_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The link was replaced by a folder, and the user's rows stayed where they were."""
    (tmp_path / "disk").mkdir()
    Cohort.from_arrays(DATA.X, DATA.y, IDS).save(tmp_path / "disk" / "rows")
    (tmp_path / "rows").symlink_to(tmp_path / "disk" / "rows")
    forget("patient-17", tmp_path / "rows")
    assert not holds(tmp_path / "disk", b"patient-17")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["disk", "rows"]
    monkeypatch.chdir(tmp_path / "disk" / "rows")
    forget("patient-18", ".")
    assert Cohort.open(tmp_path / "rows").n_users == 58


def test_nothing_is_removed_if_a_later_folder_is_wrong(tmp_path: Path) -> None:
    """The head was removed, the command failed at the next folder, and a second try said: this user has no head."""
    Cohort.from_arrays(DATA.X, DATA.y, IDS).save(tmp_path / "rows")
    done = CliRunner().invoke(app, ["forget", "patient-5", str(tmp_path / "rows"), str(tmp_path / "typo")])
    assert "Nothing was removed" in str(done.exception)
    assert Cohort.open(tmp_path / "rows").n_users == 60


def test_another_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must be a model folder"):
        forget("7", tmp_path)
