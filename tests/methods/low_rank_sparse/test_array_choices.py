"""How many coordinates users choose: the same by array operations and compiled, by each user alone, without Numba."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import tacitly
from tacitly.methods.low_rank_sparse import heads
from tacitly.methods.low_rank_sparse.array_choices import chosen_sizes
from tacitly.methods.low_rank_sparse.heads import Sparsity, fit_sparse_heads, inverse_sizes

Ragged = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


@pytest.fixture(scope="module")
def ragged() -> Ragged:
    """Users with none to 20 rows each."""
    data = tacitly.datasets.make_low_rank_sparse(150, 15, 2, 20, sparsity=2, random_state=0)
    rng = np.random.default_rng(0)
    order = np.argsort(data.users, kind="stable")
    kept = rng.random(len(order)) < np.repeat(rng.uniform(0.0, 1.0, 150), 20)
    counts = np.bincount(np.repeat(np.arange(150), 20)[kept], minlength=150)
    y = data.y[order][kept] + 0.1 * rng.normal(size=int(kept.sum()))
    return data.X[order][kept], y, np.append(0, np.cumsum(counts)), data.basis


@pytest.mark.parametrize("intercept", [False, True])
def test_both_forms_choose_the_same_and_fit_the_same(
    ragged: Ragged, intercept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    sparsity = Sparsity.of("auto", 15)
    by_arrays = fit_sparse_heads(*ragged, sparsity, intercept=intercept)
    monkeypatch.setattr(heads, "few", lambda users, features: False)
    compiled = fit_sparse_heads(*ragged, sparsity, intercept=intercept)
    assert len(np.unique(np.count_nonzero(by_arrays.values, axis=1))) > 2
    np.testing.assert_array_equal(by_arrays.indices, compiled.indices)
    np.testing.assert_allclose(by_arrays.values, compiled.values, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(by_arrays.weights, compiled.weights, rtol=1e-8, atol=1e-10)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # callers ignore them: users without rows
def test_what_a_user_chooses_does_not_depend_on_others(ragged: Ragged) -> None:
    X, y, offsets, basis = ragged
    with np.errstate(all="ignore"):
        scale = inverse_sizes(X, offsets, True)
    sizes = Sparsity.of("auto", 15).sizes
    among = chosen_sizes(X, y, offsets, basis, scale, sizes, intercept=True, doubt=1.0)
    for user in range(0, 150, 7):
        rows = slice(offsets[user], offsets[user + 1])
        one = np.array([0, offsets[user + 1] - offsets[user]])
        own = chosen_sizes(X[rows], y[rows], one, basis, scale[user : user + 1], sizes, intercept=True, doubt=1.0)
        assert own.tolist() == among[user : user + 1].tolist()


def test_a_first_fit_of_few_users_compiles_nothing() -> None:
    program = """
import sys, tacitly
data = tacitly.datasets.make_low_rank_sparse(300, 12, 2, 10, sparsity=1, random_state=0)
tacitly.LowRankSparse(2, "auto", epsilon=8.0).fit(data.X, data.y, data.users)
print("numba" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
