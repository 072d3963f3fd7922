"""Normal equations of many users at once are those of each user alone, whoever is beside them."""

from __future__ import annotations

import numpy as np
import pytest

from tacitly.linalg import orthonormal
from tacitly.methods.altmin import queries
from tacitly.methods.altmin.queries import NormalEquations
from tacitly.methods.shared.whitening import Whitening

D, K = 6, 2


def equations() -> NormalEquations:
    return NormalEquations(
        orthonormal(np.random.default_rng(0).normal(size=(D, K)))[0], Whitening.identity(D), 0.5, 0.5
    )


def rows(counts: list[int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return rows of users with these numbers of rows; a user's rows do not depend on the others."""
    offsets = np.append(0, np.cumsum(counts))
    users = [np.random.default_rng(i).normal(size=(m, D + 1)) for i, m in enumerate(counts)]
    whole = np.concatenate(users)
    return np.ascontiguousarray(whole[:, :-1]), whole[:, -1].copy(), offsets


@pytest.mark.parametrize("others", [[5] * 100, [1, 9, 5, 30, 5], [2]])
def test_no_norm_depends_on_other_users_to_the_last_bit(others: list[int]) -> None:
    alone = equations().norms(*rows([5]))
    assert equations().norms(*rows([5, *others]))[0] == alone[0] > 0


def test_a_user_with_many_rows_does_not_make_copies_of_everybodys(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = [3, 8, 8, 8, 40, 1]
    expected = equations().block_sum(*rows(counts), 1.0)
    monkeypatch.setattr(queries, "_CELLS", 1)  # every user alone
    np.testing.assert_allclose(equations().block_sum(*rows(counts), 1.0), expected, atol=1e-14)
