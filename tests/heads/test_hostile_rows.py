"""A user whose rows are built to break arithmetic has a finite head, and moves nobody else's by a bit."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from tacitly.arrays import Array
from tacitly.heads.base import HeadWork
from tacitly.heads.glm import LossHeads
from tacitly.heads.losses import Loss
from tacitly.heads.own_weights import HeadsWithOwnWeights
from tacitly.heads.population import BELIEFS, HeadPrior, PopulationHeads
from tacitly.heads.ridge import RidgeHeads
from tacitly.methods.low_rank_sparse.heads import SparseHeadWork, Sparsity
from tacitly.methods.mixed_effects import heads as mixed_heads
from tacitly.methods.mixed_effects.evidence import ALONE, TRUSTED
from tacitly.methods.mixed_effects.heads import PosteriorHeads
from tacitly.methods.mixed_effects.loss_heads import LossPosteriorHeads
from tacitly.methods.mixed_effects.posterior import Coordinates, Prior

VALUES = [np.nan, np.inf, -np.inf, 5e-324, 1e-310, 2.2e-308, 1e-160, 1e154, 1e200, 1.79e308, -1.79e308, 0.0, -0.0, 1.0]
SIZES = [1e-320, 1e-308, 1e-170, 1e150, 1e160, 1e300, 1e308]
SHAPES = {"few directions": (5, 3), "many directions": (20, 18)}  # one by one in registers, or by LAPACK
COUNTS = [0, 1, 2, 5, 8, 9, 17, 40]


def basis(features: int, directions: int) -> Array:
    return np.asarray(np.linalg.qr(np.random.default_rng(0).normal(size=(features, directions)))[0])


def prior(directions: int, size: float, noise: float) -> HeadPrior:
    rng = np.random.default_rng(1)
    return HeadPrior(size * rng.normal(size=directions + 1), size * np.eye(directions + 1), noise)


def of_posteriors(features: int, loss: str, classes: int = 1) -> tuple[Coordinates, Prior]:
    rng, size = np.random.default_rng(2), features + 1
    mean, root = rng.normal(size=(classes, size)), 0.2 * rng.normal(size=(size, size)) + 0.3 * np.eye(size)
    units = Coordinates(np.zeros(features), np.ones(features), 0.0, 1.0)
    return units, Prior(mean if classes > 1 else mean[0], root, 0.4, loss)


WORKS: dict[str, Any] = {
    "ridge": lambda U: RidgeHeads(U),
    "ridge, level": lambda U: RidgeHeads(U, True),
    "own weights": lambda U: HeadsWithOwnWeights(U),
    **{
        f"population, {belief}, prior of {size:g}": lambda U, belief=belief, size=size, noise=noise: PopulationHeads(
            U, prior(U.shape[1], size, noise), True, belief
        )
        for belief, (size, noise) in zip(itertools.cycle(BELIEFS), ((1.0, 1.0), (1e6, 1e-8), (1e-6, 1e8), (1.0, 1e-8)))
    },
    "sparse": lambda U: SparseHeadWork(U, Sparsity(1), True, False),
    "logistic": lambda U: LossHeads(U, Loss("logistic"), True),
    "poisson": lambda U: LossHeads(U, Loss("poisson"), True),
    "mixed effects": lambda U: PosteriorHeads(*of_posteriors(len(U), "squared"), np.array(TRUSTED)),
    "mixed effects, compiled": lambda U: PosteriorHeads(*of_posteriors(len(U), "squared"), np.array(TRUSTED)),
    "own means": lambda U: PosteriorHeads(*of_posteriors(len(U), "squared"), np.array(ALONE)),
    "mixed effects, two classes": lambda U: LossPosteriorHeads(*of_posteriors(len(U), "logistic"), 0.3),
    "mixed effects, three classes": lambda U: LossPosteriorHeads(*of_posteriors(len(U), "logistic", 3)),
    "mixed effects, counts": lambda U: LossPosteriorHeads(*of_posteriors(len(U), "poisson"), 0.3),
}


def hostile(rng: np.random.Generator, rows: int, features: int) -> tuple[Array, Array]:
    """Return rows and targets of one hostile user."""
    X, y = rng.normal(size=(rows, features)), rng.normal(size=rows)
    with np.errstate(all="ignore"):
        kind = rng.integers(5)
        if kind == 0:
            X[:] = rng.choice(VALUES)
        elif kind == 1:
            X *= rng.choice(SIZES)
        elif kind == 2:
            X[rng.random(X.shape) < 0.3] = rng.choice(VALUES)
        elif kind == 3:
            X *= 10.0 ** rng.uniform(-320, 308, size=(rows, 1))
        else:
            X[:] = X[:1]
        y = [y, rng.choice(VALUES, size=rows), y * 10.0 ** rng.uniform(-320, 308)][rng.integers(3)]
    return X, y


def together(users: list[tuple[Array, Array]], work: HeadWork, dtype: type) -> tuple[Array, Array, Array]:
    X, y = (np.concatenate(part) for part in zip(*users, strict=True))
    if isinstance(work, LossHeads):  # labels, as the way in leaves them
        y = (y > 0) * 1.0 if work.loss.name == "logistic" else np.nan_to_num(np.abs(np.clip(y, -50, 50))).round()
    elif isinstance(work, LossPosteriorHeads):
        classes = 9 if work.prior.loss == "poisson" else work.prior.mean.size // work.units.size + 1
        y = np.nan_to_num(np.abs(np.clip(y, -50, 50))).round() % classes
    with np.errstate(all="ignore"):
        return X.astype(dtype), y.astype(dtype), np.append(0, np.cumsum([len(own) for _, own in users]))


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("name", WORKS)
def test_hostile_rows_move_nobody_else_and_give_a_finite_head(
    name: str, shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twenty cohorts of up to 17 users: the hostile one is in any of the eight places of a register."""
    monkeypatch.setattr(mixed_heads, "_MANY", 0 if name.endswith("compiled") else mixed_heads._MANY)
    (d, k), rng = shape, np.random.default_rng(len(name))
    work: HeadWork = WORKS[name](basis(d, k))
    for trial in range(20):
        dtype = (np.float64, np.float32)[trial % 4 == 3]
        users = [
            (rng.normal(size=(m, d)), rng.normal(size=m)) for m in rng.choice(COUNTS, size=rng.choice([1, 7, 8, 17]))
        ]
        place = int(rng.integers(len(users)))
        theirs = hostile(rng, int(rng.choice([0, 1, 2, 8, 9, 33])), d)
        others = [*users[:place], theirs, *users[place + 1 :]]
        kept = np.arange(len(users)) != place
        with np.errstate(all="ignore"):
            before, after = (work(*together(these, work, dtype)) for these in (users, others))
            alone = work.own(*together([theirs], work, dtype)[:2])
        assert before[kept].tobytes() == after[kept].tobytes()
        assert np.isfinite(after).all()
        assert np.isfinite(alone).all()
