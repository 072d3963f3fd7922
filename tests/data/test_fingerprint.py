"""The fingerprint of rows: equal for equal rows, different for any other, and nothing without its key."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import scipy.sparse

from tacitly.data import fingerprint
from tacitly.data.cohort import Cohort
from tacitly.data.fingerprint import rows_fingerprint
from tacitly.data.sparse_cohort import SparseCohort


def cohort(**changes: object) -> Cohort:
    rng = np.random.default_rng(0)
    return replace(Cohort.from_arrays(rng.normal(size=(40, 3)), rng.normal(size=40), np.repeat(range(8), 5)), **changes)


def test_any_change_of_any_array_shows(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    first = cohort()
    known = {rows_fingerprint(first, b"key")}
    assert rows_fingerprint(cohort(), b"key") in known
    X, y = first.X.copy(), first.y.copy()
    X[39, 2], y[0] = np.nextafter(X[39, 2], 9), -y[0]
    offsets = first.offsets.copy()
    offsets[1] += 1
    others = [cohort(X=X), cohort(y=y), cohort(offsets=offsets), cohort(users=first.users + 1), cohort(y=None)]
    known |= {rows_fingerprint(other, b"key") for other in others} | {rows_fingerprint(first, b"other")}
    assert len(known) == 7
    monkeypatch.setattr(fingerprint, "_BLOCK", 64)  # many blocks
    assert (
        rows_fingerprint(cohort(), b"key") == rows_fingerprint(cohort(), b"key") != rows_fingerprint(others[0], b"key")
    )


def test_sparse_rows_and_text_ids_count_too() -> None:
    matrix = scipy.sparse.random(20, 6, density=0.3, random_state=0, format="csr")
    users = np.repeat(["a", "b"], 10)
    first = rows_fingerprint(SparseCohort.from_matrix(matrix, users), b"key")
    changed = matrix.copy()
    changed.data[0] *= 2
    assert first == rows_fingerprint(SparseCohort.from_matrix(matrix, users), b"key")
    assert first != rows_fingerprint(SparseCohort.from_matrix(changed, users), b"key")
    assert first != rows_fingerprint(SparseCohort.from_matrix(matrix, np.repeat(["a", "c"], 10)), b"key")
