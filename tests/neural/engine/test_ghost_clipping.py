"""Ghost clipping: norms are bounded from above, so no user adds more than the clip."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from torch import Tensor

from tacitly.neural.engine import ghost_clipping
from tacitly.neural.engine.ghost_clipping import KAPPA, Products, add_clipped, max_users_per_product
from tacitly.privacy.clipping import GUARD

torch.set_num_threads(1)


def gap(a: Tensor, g: Tensor, bound: float = 1.0) -> float:
    """Return the norm of what one user's rows add, relative to the clip, by exact summation."""
    piece, total = Products.from_rows(a, g, [len(a)], len(a)), torch.zeros(a.shape[1] * g.shape[1], dtype=torch.float64)
    add_clipped(total, [piece], bound, 1.0, normalised=True)
    return math.sqrt(math.fsum(float(v) ** 2 for v in total)) / bound


def cancelling(rng: np.random.Generator, dtype: torch.dtype, rows: int, width: int, left: float) -> tuple[Tensor, ...]:
    """Return rows whose products cancel up to a share ``left``."""
    a, g = (torch.tensor(rng.normal(size=(rows, width)), dtype=dtype) for _ in range(2))
    a, g = torch.cat([a, a]), torch.cat([g, -g])
    a[rows:] *= 1.0 + left
    return a, g


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_rows_that_cancel_are_bounded_from_above(dtype: torch.dtype) -> None:
    rng, reached = np.random.default_rng(0), []
    for left, (m, width) in itertools.product([1e-1, 1e-2, 1e-4, 1e-6, 0.0], [(1, 3), (4, 9), (30, 40)]):
        for size in (1.0, 1e15, 1e-15):
            a, g = cancelling(rng, dtype, m, width, left)
            reached.append(gap(a * size, g / size**0.5))
            assert reached[-1] <= 1.0
            made = Products.from_rows(a, g, [2 * m], 2 * m)
            one, two = a.double().numpy(), g.double().numpy()
            exact = [math.fsum(one[:, i] * two[:, j]) for i, j in np.ndindex(width, width)]
            assert float(made.norm_bound * made.scale) >= np.linalg.norm(exact)
    assert max(reached) > 0.999


def without_slack(a: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """Mutation: the computed norm is used without an allowance for rounding."""
    found, spread = ghost_clipping.__dict__["_genuine"](a, g)
    return found, 0.0 * spread


def sum_of_norms_of_halves(a: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """Mutation: rows are assumed orthogonal."""
    spread = ghost_clipping.__dict__["_genuine"](a, g)[1]
    return (a.square().sum(-1) * g.square().sum(-1)).sum(-1), spread


def broken(mutant: object, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Return whether some user exceeds the clip under a mutation."""
    monkeypatch.setattr(ghost_clipping, "_genuine", ghost_clipping._squared_norms, raising=False)
    monkeypatch.setattr(ghost_clipping, "_squared_norms", mutant)
    rng = np.random.default_rng(0)
    equal = torch.ones(5, 4), torch.ones(5, 3)
    # After cancellation the squared norm is as small as the rounding errors of its terms.
    pairs = [equal, *(cancelling(rng, torch.float64, 30, 20, 1e-8) for _ in range(30))]
    return any(gap(a, g) > 1.001 for a, g in pairs)


def test_a_bound_that_forgets_rounding_or_how_rows_add_up_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    assert broken(sum_of_norms_of_halves, monkeypatch)
    monkeypatch.undo()
    assert broken(without_slack, monkeypatch)
    monkeypatch.undo()
    assert not broken(ghost_clipping._squared_norms, monkeypatch)


def test_users_whose_rows_cancel_do_not_spoil_how_others_are_rounded() -> None:
    """All users but one cancel as far as the bound allows; one more user still changes the sum by at most the clip."""
    rng, m, width = np.random.default_rng(0), 4, 6
    users = max_users_per_product(2 * m)
    parts = [cancelling(rng, torch.float32, m, width, 0.0) for _ in range(users)]
    a, g = (torch.cat(part) for part in zip(*parts, strict=True))
    sums = []
    for there in (True, False):
        mine = g.clone()
        if not there:
            mine[: 2 * m] = 0.0
        total = torch.zeros(width * width, dtype=torch.float64)
        add_clipped(total, [Products.from_rows(a, mine, [2 * m] * users, 2 * m)], 1.0, 1.0, normalised=True)
        sums.append(total)
    assert float(torch.linalg.vector_norm(sums[0] - sums[1])) <= 1.0
    assert 2.0 * 2.0**-53 * KAPPA * users**2 * 2 * m <= GUARD / 4


def test_rows_that_cancel_are_brought_below_the_clip_so_that_their_rounding_is_small() -> None:
    a, g = cancelling(np.random.default_rng(0), torch.float32, 4, 6, 1e-6)
    made = Products.from_rows(a, g, [8], 8)
    assert made.norm_bound < made.uncancelled / KAPPA
    bound, scale = ghost_clipping.norm_bounds([made])
    total = torch.zeros(36, dtype=torch.float64)
    assert float(bound) == float(made.uncancelled / KAPPA)
    add_clipped(total, [made], 1.0, 1.0, normalised=True)
    factor = float(torch.linalg.vector_norm(total) / (made.norm_bound * scale))
    assert float(made.uncancelled * scale) * factor <= 1.001 * KAPPA
