"""Sparse matrices are rows like others: the same model to the last bit, and an error before memory runs out."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import scipy.sparse

import tacitly
from tacitly.data.validation import DataError
from tacitly.datasets import make_shared_subspace


def test_a_sparse_matrix_gives_the_model_of_its_dense_rows() -> None:
    data = make_shared_subspace(300, 8, 2, 8, 0.1, random_state=0)
    X = np.where(np.abs(data.X) > 0.7, data.X, 0.0)
    models = []
    for rows in (X, scipy.sparse.csr_matrix(X), scipy.sparse.csc_array(X)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            models.append(tacitly.PrivateFedRep(2, epsilon=4.0, noise_seed=0).fit(rows, data.y, data.users))
    for model in models[1:]:
        np.testing.assert_array_equal(model.basis_, models[0].basis_)
        np.testing.assert_array_equal(model.heads_, models[0].heads_)
    dense, sparse, mine = models[0], scipy.sparse.csr_matrix(X[:8]), (X[:8], data.y[:8])
    np.testing.assert_array_equal(dense.predict(sparse, data.users[:8]), dense.predict(X[:8], data.users[:8]))
    np.testing.assert_array_equal(dense.personalize(sparse, mine[1]).weights, dense.personalize(*mine).weights)


def test_a_matrix_that_is_too_large_to_be_dense_is_refused() -> None:
    X = scipy.sparse.csr_matrix((100_000, 1_000_000))
    with pytest.raises(DataError, match=r"745.1 GiB as the dense rows.*FedPower"):
        tacitly.PrivateFedRep(2, epsilon=1.0).fit(X, np.zeros(100_000), np.arange(100_000))
