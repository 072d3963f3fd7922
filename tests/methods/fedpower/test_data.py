"""FedPower's documented accuracy on the papers' public data sets, if present (TACITLY_DATA)."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse

import tacitly
from tacitly.methods.fedpower.as_printed import Settings, fed_power

FOLDER = Path(os.environ.get("TACITLY_DATA", Path(__file__).parents[4] / "shared" / "data"))
pytestmark = pytest.mark.skipif(not (FOLDER / "a9a").is_dir(), reason="the data sets are not there")


@pytest.fixture(scope="module")
def a9a() -> np.ndarray:
    parts = np.load(FOLDER / "a9a" / "a9a.train.npz")
    shape = tuple(parts["shape"])
    return (
        2.0 * scipy.sparse.csr_matrix((parts["data"], parts["indices"], parts["indptr"]), shape=shape).toarray() - 1.0
    )


def top(X: np.ndarray) -> np.ndarray:
    return np.linalg.eigh(X.T @ X)[1][:, ::-1][:, :5]


def test_a9a_at_epsilon_one(a9a: np.ndarray) -> None:
    options = {"epsilon": 1.0, "delta": 1e-5, "feature_range": (-1, 1), "noise": "float"}
    models = [tacitly.FedPower(5, **options).fit(a9a) for _ in range(6)]
    assert all(model.certificate_.certified for model in models)
    truth = top(a9a)
    errors = [tacitly.subspace_distance(model.components_.T, truth) for model in models]
    assert np.mean(errors) < 0.05
    assert np.mean(errors) == pytest.approx(np.mean([model.predicted_error_ for model in models]), rel=0.35)


def test_a9a_as_sparse_rows(a9a: np.ndarray) -> None:
    rows = scipy.sparse.csr_matrix((a9a + 1) / 2)
    model = tacitly.FedPower(5, epsilon=1.0, delta=1e-5).fit(rows)
    assert tacitly.subspace_distance(model.components_.T, top(rows.toarray())) < 0.2


def test_table_2_on_a9a_without_noise(a9a: np.ndarray) -> None:
    parts = np.array_split(a9a[np.random.default_rng(0).permutation(len(a9a))], 32)
    matrices, sizes = np.array([A.T @ A / len(A) for A in parts]), np.array([float(len(A)) for A in parts])
    printed = fed_power(matrices, sizes, 5, Settings(iterations=200, iteration_rank=10), 0)
    assert tacitly.subspace_distance(printed, top(a9a)) < 1.5 * 4.09e-3
    decayed = fed_power(matrices, sizes, 5, Settings(iterations=200, iteration_rank=10, decay=True), 0)
    assert tacitly.subspace_distance(decayed, top(a9a)) < 1e-8
