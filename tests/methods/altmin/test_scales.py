"""Scales of normal equations are found, or what they would scale is left alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tacitly
from tacitly.methods.altmin import algorithm as altmin
from tacitly.methods.low_rank_sparse import algorithm as low_rank_sparse
from tacitly.methods.shared.typical_norm import Typical

MODELS: dict[str, Any] = {
    "PrivateAltMin": lambda **o: tacitly.PrivateAltMin(rank=1, **o),
    "LowRankSparse": lambda **o: tacitly.LowRankSparse(rank=1, sparsity=1, route="equations", **o),
}
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def fitted(name: str, users: int, epsilon: float, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any, list[Typical]]:
    """Return the data, the model, and the scales that it found."""
    data = tacitly.datasets.make_shared_subspace(users, 5, 1, 8, random_state=0)
    found: list[Typical] = []
    for module in (altmin, low_rank_sparse):
        real = module.typical_norm

        def noted(*arguments: Any, real: Any = real, **words: Any) -> Typical:
            found.append(real(*arguments, **words))
            return found[-1]

        monkeypatch.setattr(module, "typical_norm", noted)
    return data, MODELS[name](epsilon=epsilon).fit(data.X, data.y, data.users), found


@pytest.mark.parametrize("name", MODELS)
def test_a_scale_that_noise_hides_leaves_the_basis_that_users_voted_for(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Histograms took noise for a scale there, and released equations at scales such as 2^90 or 2^-70.

    Here users are far below the noise, which is never twenty times as large as usual.
    """
    solved: list[object] = []
    monkeypatch.setattr(altmin.NormalEquations, "solve", lambda *a: solved.append(a))
    monkeypatch.setattr(low_rank_sparse, "solve_equations", lambda *a: solved.append(a))
    _, model, found = fitted(name, 20, 0.05, monkeypatch)
    assert len(found) >= 2
    assert not solved
    assert np.isfinite(model.basis_).all()


@pytest.mark.parametrize("name", MODELS)
def test_a_scale_that_stands_out_is_that_of_the_users(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At ε = 300 noise is hardly there; the typical norms are those of users, to an octave."""
    data, model, found = fitted(name, 400, 300.0, monkeypatch)
    assert all(typical.found for typical in found)
    assert tacitly.subspace_distance(model.basis_, data.basis) < 0.2
    sizes = np.array([typical.size for typical in found])
    assert (sizes < 100.0 * np.mean(np.square(data.y))).all()
    assert (sizes > 1e-4 * np.mean(np.square(data.y))).all()
