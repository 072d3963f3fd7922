"""Audit with few runs: hundreds of canaries at once, each included by an independent fair coin.

For mechanisms that are too expensive to run thousands of times. Canaries are extreme users in random directions.
Optionally they are added to a crowd of users with small values, whose rows are known and always included. Clipping
bounds and scales that a mechanism learns from its users are then determined by the crowd, and canaries exceed them in
every release instead of in some. The attacker knows every query, and so what each canary would add to each sum. Given
these contributions, coins and noise are nearly Gaussian. The best joint guess of all coins is then a ridge regression
of the released values on the canaries' contributions, which also removes the contributions of other canaries. The
guesses bound ε: for any mechanism from one run (:func:`from_one_run <tacitly.audit.bounds.from_one_run>`), and more
tightly for claims of Gaussian privacy from a few runs (:func:`from_accuracy <tacitly.audit.bounds.from_accuracy>`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tacitly.arrays import Array, read_only
from tacitly.audit.attack import Attacker, log_odds
from tacitly.audit.bounds import Bound, from_accuracy, from_one_run
from tacitly.audit.recording import Entry
from tacitly.audit.sensitivity import added_by
from tacitly.audit.worlds import ROWS, Worlds
from tacitly.data.cohort import Cohort
from tacitly.methods.base import PrivateModel
from tacitly.privacy.guarantee import Adjacency, SelectionEvent

_GUESSES = 0.1
_SINGLE_ROWS = ("row", "observation")  # with these units of privacy, a user may have several units
_SIZES = (1.0, 1e3, 1e9)  # sizes of canaries: large rows reach every clipping bound, but saturate some networks
_MORE, _FEW, _RARE = 4, 2, 0.1  # with a crowd: more rows per canary, few per crowd user, few second labels in the crowd


def audit_one_run(
    estimator: PrivateModel,
    *,
    canaries: int = 200,
    n_features: int = 30,
    confidence: float = 0.95,
    random_state: int | None = None,
) -> Bound:
    """Bound ε from one run with many canaries among its users.

    Parameters
    ----------
    estimator
        The estimator to attack. If its unit is the row, canaries have one row each.
    canaries
        Number of users, each included with probability one half (or replaced, if the adjacency is replace-one).
    n_features
        Features of the synthetic users: the more features, the less canaries interfere with each other.
    confidence
        Probability that the bound holds.
    random_state
        Seed of the synthetic users' rows and coins.

    Examples
    --------
    >>> import tacitly
    >>> bound = audit_one_run(tacitly.PrivateAltMin(rank=1, epsilon=1.0, rounds=1), canaries=200, n_features=6)
    >>> bound.epsilon <= 1.0 < bound.ceiling
    True
    """
    rng = np.random.default_rng(random_state)
    there, scores, delta, _ = _one_run(estimator, canaries, n_features, rng, _Kind())
    guesses = max(2, int(_GUESSES * canaries)) // 2
    order = np.argsort(scores)
    right = int(np.count_nonzero(there[order[-guesses:]]) + np.count_nonzero(~there[order[:guesses]]))
    return from_one_run(right, 2 * guesses, canaries, delta, confidence=confidence)


def audit_canaries(
    estimator: PrivateModel,
    *,
    canaries: int = 200,
    runs: int = 40,
    n_features: int = 30,
    crowd: int = 0,
    confidence: float = 0.95,
    random_state: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> Bound:
    """Bound ε of a claim of Gaussian privacy from a few runs, each with many canaries and its own coins.

    The parameters are those of :func:`audit_one_run`, and ``crowd``: the number of ordinary users with small values
    that are added to the canaries. Every coin is guessed: ``canaries × runs`` guesses prove about as much as that many
    runs with one canary. The kind of canaries is chosen beforehand, by their contributions in one additional run of
    each kind.
    """
    rng = np.random.default_rng(random_state)
    right, delta = [], 0.0
    # The choice uses public numbers only: the possible contributions of canaries, not which of them took part.
    kinds = _kinds(estimator, crowd)
    kind = max(kinds, key=lambda kind: _one_run(estimator, canaries, n_features, rng, kind).power)
    for _ in range(runs):
        run = _one_run(estimator, canaries, n_features, rng, kind)
        right.append(float(np.mean((run.scores > 0) == run.there)))
        delta = run.delta
        if progress is not None:
            progress(1)
    return from_accuracy(right, delta, confidence=confidence)


class _Kind(NamedTuple):
    """A kind of canaries: size of their rows, whether they are replaced by ``turned`` targets, size of the crowd."""

    size: float = 1e3
    turned: bool = False
    crowd: int = 0


class _Users(NamedTuple):
    """Canaries, their replacements, and the crowd, each as (rows, targets), n×m×d and n×m."""

    there: tuple[Array, Array]
    away: tuple[Array, Array]
    crowd: tuple[Array, Array]


class _Run(NamedTuple):
    """Which canaries took part, the attacker's scores, δ, and the mean power of a canary given all others."""

    there: npt.NDArray[np.bool_]
    scores: Array
    delta: float
    power: float


def _kinds(estimator: PrivateModel, crowd: int) -> list[_Kind]:
    turned = (False, True) if _replaces(estimator) else (False,)
    return [_Kind(*kind) for kind in itertools.product(_SIZES, turned, sorted({0, crowd}))]


def _replaces(estimator: PrivateModel) -> bool:
    return bool(getattr(estimator, "adjacency", None) == Adjacency.REPLACE_ONE)


def _users(estimator: PrivateModel, canaries: int, n_features: int, rng: np.random.Generator, kind: _Kind) -> _Users:
    """Return canaries and their replacements: other features, or ``turned`` targets; NaN if users are not replaced.

    If a user has two rows, the part of the targets that a basis of one direction does not explain lies on one line.
    With targets turned by a right angle, this part or the head has the opposite sign. If the second label is rare in a
    crowd, canaries have both labels equally often: this is unexpected for the model, and their labels remain
    informative.
    """
    single = getattr(estimator, "unit", None) in _SINGLE_ROWS
    rows = 1 if single else 2 if kind.turned else _MORE * ROWS if kind.crowd else ROWS
    X = kind.size * rng.normal(size=(canaries, rows, n_features))
    quiet = rng.normal(size=(kind.crowd, 1 if single else _FEW, n_features))
    quiet_y = rng.normal(size=quiet.shape[:2])
    if kind.turned:
        y = np.full((canaries, rows), 1e3 * kind.size * np.sqrt(n_features))
        other_X, other_y = X, y * np.where(np.arange(rows) % 2, -1.0, 1.0)
    else:
        y = 1e3 * np.einsum("cmd,cd->cm", X, rng.normal(size=(canaries, n_features)))
        other_X, other_y = np.roll(X, 1, axis=2), -y
    if (labels := estimator.audit_labels) is not None:
        if kind.crowd and not kind.turned:
            y = rng.normal(size=y.shape)
        y, other_y = np.where(y > 0, *labels[::-1]), np.where(other_y > 0, *labels[::-1])
        quiet_y = np.where(rng.random(quiet_y.shape) < _RARE, *labels[::-1])
    if not _replaces(estimator):
        other_X, other_y = np.full_like(X, np.nan), np.full_like(y, np.nan) if labels is None else y
    return _Users((X, y), (other_X, other_y), (quiet, quiet_y))


def _cohort(*groups: tuple[Array, Array]) -> Cohort:
    """Return a cohort of several groups of users, each with its own number of rows."""
    n_features = groups[0][0].shape[2]
    X = np.concatenate([rows.reshape(-1, n_features) for rows, _ in groups])
    y = np.concatenate([targets.ravel() for _, targets in groups])
    rows = np.repeat([rows.shape[1] for rows, _ in groups], [len(rows) for rows, _ in groups])
    names = tuple(f"x{j}" for j in range(n_features))
    return Cohort(X, y, np.concatenate([[0], np.cumsum(rows)]), np.arange(len(rows)), names, "y")


def _one_run(estimator: PrivateModel, canaries: int, n_features: int, rng: np.random.Generator, kind: _Kind) -> _Run:
    """Run once and guess every coin."""
    users = _users(estimator, canaries, n_features, rng, kind)
    there = rng.random(canaries) < 0.5
    X, y = (
        np.where(there.reshape(-1, *[1] * (a.ndim - 1)), a, b) for a, b in zip(users.there, users.away, strict=True)
    )
    asked = _cohort((X, y), users.crowd)
    attacker = Attacker(estimator, Worlds(asked, _cohort(users.crowd) if kind.crowd else asked))
    model, entries = attacker.run(asked)
    inside, outside = (attacker.estimator.as_asked(_cohort(group)) for group in (users.there, users.away))
    scores, overlap, evidence = np.zeros(canaries), np.zeros((canaries, canaries)), np.zeros(canaries)
    for entry in entries:
        if len(entry.queries) > 1:
            continue  # groups of users took turns; this attack does not use such releases
        there_adds, away_adds = _added(entry, inside), _added(entry, outside)
        adds, expected = there_adds - away_adds, (there_adds + away_adds).sum(axis=0) / 2  # coins are unknown
        if kind.crowd:
            expected = expected + attacker.without(entry)
        if isinstance(entry.event, SelectionEvent):
            before = log_odds(entry, expected)
            with_one = np.array([log_odds(entry, expected + one) for one in adds])
            scores += (with_one - before)[:, int(entry.value[0])]
            continue
        sigma = attacker.sigma(entry)
        overlap += (adds / sigma) @ (adds / sigma).T
        evidence += (adds / sigma) @ ((entry.value.ravel() - expected) / sigma)
    # Coins of ±1/2 have variance 1/4. The remaining variance of a coin given the values tells how well it can be
    # guessed in the presence of all others: 1/(4 + μ²) if its canary had power μ alone.
    left = np.linalg.inv(overlap + 4.0 * np.eye(canaries))
    powers = np.sqrt(np.maximum(1.0 / np.diag(left) - 4.0, 0.0))
    return _Run(there, scores + left @ evidence, model.certificate_.delta, float(powers.mean()))


def _added(entry: Entry, canaries: Cohort) -> Array:
    """Return what each canary would add to a release, one row per canary."""
    query, clip = entry.queries[0], entry.event.sensitivity.zero_out
    offsets = canaries.offsets.copy()  # writable, like the offsets of a cohort's blocks: kernels are compiled for these
    X, y = np.asarray(canaries.X), np.asarray(canaries.y, dtype=np.float64)
    rows, number = X if entry.through is None else X @ entry.through.T, len(offsets) - 1
    try:  # all canaries at once, each in its own block
        with np.errstate(all="ignore"):
            sums = query.block_sums(read_only(np.ascontiguousarray(rows)), read_only(y), offsets, clip, 1)
        if sums.shape == (number, query.coordinates) and np.isfinite(sums).all():
            return np.asarray(sums, dtype=np.float64)
    except Exception:
        pass  # computed one by one below, without those that fail, as federations do
    own = [slice(int(first), int(last)) for first, last in itertools.pairwise(offsets)]
    alone = (added_by(query, (rows[one], y[one]), clip) for one in own)
    return np.array(
        [np.zeros(query.coordinates) if one is None or not np.isfinite(one).all() else one for one in alone]
    )
