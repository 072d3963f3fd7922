"""Usability tests: a site or a phone predicts with NumPy and safetensors, without a compiler (983 MB were needed)."""

from __future__ import annotations

import json
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import tacitly
from tacitly.data.validation import DataError
from tacitly.datasets import make_shared_subspace

DATA = make_shared_subspace(300, 4, 1, 8, noise=0.1, random_state=0)
NEW = np.where(DATA.users < 290, DATA.users, DATA.users + 1000)  # some are strangers
YES, COUNT = (DATA.y > 0).astype(int), np.abs(DATA.y * 3).astype(int)
THIRD = YES + (DATA.X[:, 0] > 0.5)
MODELS: dict[str, tuple[Any, Any]] = {
    "numbers": (tacitly.MixedEffects(8.0), DATA.y),
    "two classes": (tacitly.MixedEffects(8.0, loss="logistic"), YES),
    "three classes": (tacitly.MixedEffects(8.0, loss="logistic", classes=(0, 1, 2)), THIRD),
    "counts": (tacitly.MixedEffects(8.0, loss="poisson"), COUNT),
    "too little": (tacitly.MixedEffects(0.01), DATA.y),
    "basis": (tacitly.PrivateFedRep(1, 8.0, rounds=2, fit_intercept=True), DATA.y),
    "basis, own weights": (tacitly.PrivateFedRep(1, 0.05, rounds=2), DATA.y),
    "basis, classes": (tacitly.PrivateFedRep(1, 8.0, rounds=2, loss="logistic"), YES),
    "low rank and sparse": (tacitly.LowRankSparse(1, 1, 8.0, rounds=2), DATA.y),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.filterwarnings("ignore::tacitly.privacy.guarantee.TooFewUsersWarning")
def test_a_predictor_says_what_the_model_says(name: str, tmp_path: Path) -> None:
    model, y = MODELS[name]
    model.fit(DATA.X, y, DATA.users)
    predictor = tacitly.Predictor(tacitly.save(model, tmp_path / "model"))
    loaded: Any = tacitly.load(tmp_path / "model")
    users = DATA.users if name in ("basis, own weights", "basis, classes") else NEW  # no population there
    assert (name == "basis, own weights") == bool(len(getattr(loaded, "own_weights_", ())))
    assert predictor.features == ["x0", "x1", "x2", "x3"]
    np.testing.assert_allclose(predictor.predict(DATA.X, users), loaded.predict(DATA.X, users), rtol=1e-12, atol=1e-14)
    if name in ("numbers", "counts", "too little"):
        mine, theirs = (each.predict(DATA.X, users, return_std=True)[1] for each in (predictor, loaded))
        np.testing.assert_allclose(mine, theirs, rtol=1e-12, atol=1e-14)
    if hasattr(loaded, "predict_proba"):
        np.testing.assert_allclose(
            predictor.predict_proba(DATA.X, users), loaded.predict_proba(DATA.X, users), rtol=1e-12, atol=1e-15
        )


@pytest.mark.filterwarnings("ignore::tacitly.privacy.guarantee.TooFewUsersWarning")
def test_no_bit_of_a_prediction_depends_on_other_rows(tmp_path: Path) -> None:
    """A matrix product over all rows of a request let its size show in last bits."""
    X, y, users, *_ = make_shared_subspace(200, 40, 3, 8, random_state=0)
    model = tacitly.PrivateFedRep(3, 20.0, rounds=2).fit(X, y, users)
    predictor = tacitly.Predictor(tacitly.save(model, tmp_path / "model"))
    for scale in (1.0, 1e-3, 7.0):
        whole = predictor.predict(scale * X, users)
        for few in (1, 2, 3, 5, 13):
            assert (predictor.predict(scale * X[:few], users[:few]) == whole[:few]).all()


LITTLE = """
import sys, time
began = time.perf_counter()
for name in {heavy}: sys.modules[name] = None
import json, tacitly
predictor = tacitly.Predictor(sys.argv[1])
table = json.load(open(sys.argv[2]))
mean, std = predictor.predict(table, users=table["patient"], return_std=True)
print(json.dumps({{"mean": mean.tolist(), "std": std.tolist(), "seconds": time.perf_counter() - began}}))
"""
HEAVY = (
    "dp_accounting",
    "llvmlite",
    "numba",
    "opendp",
    "pandas",
    "pyarrow",
    "rich",
    "scipy",
    "sklearn",
    "threadpoolctl",
    "typer",
)


def test_prediction_of_a_table_with_text_needs_nothing_but_numpy_and_safetensors(tmp_path: Path) -> None:
    visits = tacitly.datasets.load_visits(300)
    X = visits.drop_columns(["patient", "score"])
    model = tacitly.MixedEffects(8.0).fit(X, visits["score"], visits["patient"])
    tacitly.save(model, tmp_path / "model")
    loaded: Any = tacitly.load(tmp_path / "model")
    (tmp_path / "rows.json").write_text(json.dumps(visits[:20].to_pydict()))
    words = [sys.executable, "-c", LITTLE.format(heavy=HEAVY), str(tmp_path / "model"), str(tmp_path / "rows.json")]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    mean, std = loaded.predict(X[:20], visits["patient"][:20], return_std=True)
    np.testing.assert_allclose(said["mean"], mean, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(said["std"], std, rtol=1e-12)


def test_a_folder_that_was_changed_is_refused(tmp_path: Path) -> None:
    model = tacitly.MixedEffects(8.0).fit(DATA.X, DATA.y, DATA.users)
    config = tacitly.save(model, tmp_path / "model") / "config.json"
    config.write_text(config.read_text().replace("squared", "poisson"))
    with pytest.raises(tacitly.DataError, match="changed after"):
        tacitly.Predictor(tmp_path / "model")
    with pytest.raises(tacitly.DataError, match="not a model folder"):
        tacitly.Predictor(tmp_path)


@pytest.mark.parametrize("name", ["numbers", "basis"])
@pytest.mark.filterwarnings("ignore::tacitly.privacy.guarantee.TooFewUsersWarning")
def test_no_error_of_a_predictor_shows_a_cell(name: str, tmp_path: Path) -> None:
    model, y = MODELS[name]
    predictor = tacitly.Predictor(tacitly.save(model.fit(DATA.X, y, DATA.users), tmp_path / "model"))
    table = {feature: [1.0, "S3CR3T"] for feature in predictor.features}
    with pytest.raises(ValueError, match="number") as caught:
        predictor.predict(table)
    assert "S3CR3T" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("name", ["numbers", "basis"])
@pytest.mark.filterwarnings("ignore::tacitly.privacy.guarantee.TooFewUsersWarning")
def test_columns_of_a_table_are_taken_by_name(name: str, tmp_path: Path) -> None:
    """A frame whose columns were in another order was read as an array: other predictions, without a word."""
    model, y = MODELS[name]
    frame = pd.DataFrame(DATA.X, columns=list("abcd"))
    predictor = tacitly.Predictor(tacitly.save(model.fit(frame, y, DATA.users), tmp_path / "model"))
    expected = predictor.predict(DATA.X[:5], DATA.users[:5])
    turned = frame[list("dbca")][:5].assign(more="text")
    for table in (turned, pl.from_pandas(turned), pa.Table.from_pandas(turned), turned.to_dict("list")):
        np.testing.assert_array_equal(predictor.predict(table, DATA.users[:5]), expected)
    with pytest.raises(DataError, match="X lacks the columns 'a'"):
        predictor.predict(frame.drop(columns="a"))
    unnamed = tacitly.Predictor(tacitly.save(model.fit(DATA.X, y, DATA.users), tmp_path / "unnamed"))
    assert np.isfinite(unnamed.predict(frame[:5])).all()


def test_a_table_with_text_is_taken_by_a_predictor(tmp_path: Path) -> None:
    """It said that X must be numbers."""
    visits = tacitly.datasets.load_visits(100)
    X, score, patient = visits.drop_columns(["patient", "score"]), visits["score"], visits["patient"]
    model = tacitly.MixedEffects(epsilon=8.0).fit(X, score, patient)
    predictor = tacitly.Predictor(tacitly.save(model, tmp_path / "model"))
    expected = predictor.predict(X[:9].to_pydict())
    for table in (X[:9], X[:9].to_pandas(), pl.from_arrow(X[:9])):
        np.testing.assert_array_equal(predictor.predict(table), expected)


def test_what_a_service_gets_wrong_is_said_in_a_sentence(tmp_path: Path) -> None:
    """One row as it comes from a form, columns of different lengths, a recommender: errors were NumPy's own."""
    model, y = MODELS["numbers"]
    predictor = tacitly.Predictor(tacitly.save(model.fit(DATA.X, y, DATA.users), tmp_path / "model"))
    assert repr(predictor) == "Predictor(features=['x0', 'x1', 'x2', 'x3'])"
    row = {name: 1.0 for name in predictor.features}
    with pytest.raises(DataError, match="lists of cells, even for one row"):
        predictor.predict(row)
    with pytest.raises(DataError, match="Found a list of rows"):
        predictor.predict([row])
    with pytest.raises(DataError, match="of equal length"):
        predictor.predict({name: [1.0] * (2 if name == "x2" else 1) for name in predictor.features})
    films = tacitly.datasets.make_ratings(100, 10, random_state=0)
    recommender = tacitly.Recommender(epsilon=4.0, items=films.item_ids, rating_range=(1, 5))
    recommender.fit(films.users, films.item_ids[films.items], films.values)
    with pytest.raises(DataError, match="holds a Recommender, which Predictor cannot read"):
        tacitly.Predictor(tacitly.save(recommender, tmp_path / "films"))
