"""Audit with few runs: hundreds of canaries at once, each included by an independent fair coin.

For mechanisms too expensive to run thousands of times. Canaries are extreme users in random directions. The attacker
knows every query and so what each canary would add to each sum; given these, coins and noise are nearly Gaussian, and
the best guess of all coins together is a ridge regression of the released values on the canaries' contributions, which
also removes what other canaries add. The guesses bound ε: in one run for any mechanism (:func:`from_one_run
<tacitly.audit.bounds.from_one_run>`), in a few runs, more tightly, for claims of Gaussian privacy (:func:`from_accuracy
<tacitly.audit.bounds.from_accuracy>`).
"""

from __future__ import annotations

from collections.abc import Callable

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
_SINGLE_ROWS = ("row", "observation")  # units of which a user may have several
_SIZES = (1.0, 1e3)  # of canaries: large rows reach every clip, but switch off the units of some networks


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
        The estimator to attack. Where its unit is the row, canaries have one row each.
    canaries
        Number of users, each included with probability one half (or replaced, if the adjacency is replace-one).
    n_features
        Features of the synthetic users: the more there are, the less canaries interfere.
    confidence
        Probability with which the bound is right.
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
    there, scores, delta, _ = _one_run(estimator, canaries, n_features, rng)
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
    confidence: float = 0.95,
    random_state: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> Bound:
    """Bound ε of a claim of Gaussian privacy from a few runs, each with many canaries and coins of its own.

    The parameters are those of :func:`audit_one_run`. Every coin is guessed: ``canaries × runs`` guesses prove about as
    much as that many runs with one canary.
    """
    rng = np.random.default_rng(random_state)
    right, delta = [], 0.0
    # Public numbers decide: what canaries of each kind would add, not who was there.
    kinds = [(size, turned) for size in _SIZES for turned in ((False, True) if _replaces(estimator) else (False,))]
    kind = max(kinds, key=lambda kind: _one_run(estimator, canaries, n_features, rng, *kind)[3])
    for _ in range(runs):
        there, scores, delta, _ = _one_run(estimator, canaries, n_features, rng, *kind)
        right.append(float(np.mean((scores > 0) == there)))
        if progress is not None:
            progress(1)
    return from_accuracy(right, delta, confidence=confidence)


def _replaces(estimator: PrivateModel) -> bool:
    return bool(getattr(estimator, "adjacency", None) == Adjacency.REPLACE_ONE)


def _pairs(
    estimator: PrivateModel, canaries: int, n_features: int, rng: np.random.Generator, size: float, turned: bool
) -> tuple[Array, Array, Array, Array]:
    """Return rows and targets of canaries, and those of their replacements: other features, or ``turned`` targets.

    Of a user with two rows, whatever a basis of one direction leaves of the targets lies on one line; whose targets are
    turned by a right angle leaves the opposite, or has the opposite head.
    """
    rows = 1 if getattr(estimator, "unit", None) in _SINGLE_ROWS else 2 if turned else ROWS
    X = size * rng.normal(size=(canaries, rows, n_features))
    if turned:
        y = np.full((canaries, rows), 1e3 * size * np.sqrt(n_features))
        other_X, other_y = X, y * np.where(np.arange(rows) % 2, -1.0, 1.0)
    else:
        y = 1e3 * np.einsum("cmd,cd->cm", X, rng.normal(size=(canaries, n_features)))
        other_X, other_y = np.roll(X, 1, axis=2), -y
    if (labels := estimator.audit_labels) is not None:
        y, other_y = np.where(y > 0, *labels[::-1]), np.where(other_y > 0, *labels[::-1])
    return X, y, other_X, other_y


def _one_run(
    estimator: PrivateModel,
    canaries: int,
    n_features: int,
    rng: np.random.Generator,
    size: float = 1e3,
    turned: bool = False,
) -> tuple[npt.NDArray[np.bool_], Array, float, float]:
    """Run once; return who was there, the attacker's score of each canary, δ, and the canaries' mean power."""
    X, y, other_X, other_y = _pairs(estimator, canaries, n_features, rng, size, turned)
    there, replaced = rng.random(canaries) < 0.5, _replaces(estimator)
    if not replaced:
        other_X = np.full_like(X, np.nan)
    names = tuple(f"x{j}" for j in range(n_features))

    def cohort(rows: Array, targets: Array) -> Cohort:
        offsets = np.arange(canaries + 1) * X.shape[1]
        return Cohort(rows.reshape(-1, n_features), targets.ravel(), offsets, np.arange(canaries), names, "y")

    who = there[:, None, None]
    asked = cohort(np.where(who, X, other_X), np.where(there[:, None], y, other_y if replaced else y))
    attacker = Attacker(estimator, Worlds(asked, asked))
    model, entries = attacker.run(asked)

    def own(rows: Array, targets: Array) -> tuple[Array, Array]:
        seen = attacker.estimator.as_asked(cohort(rows, targets))
        return rows, np.asarray(seen.y, dtype=np.float64).reshape(targets.shape)

    inside = own(X, y)
    outside = own(other_X, other_y) if replaced else None
    scores, overlap, evidence = np.zeros(canaries), np.zeros((canaries, canaries)), np.zeros(canaries)
    for entry in entries:
        if len(entry.queries) > 1:
            continue  # groups of users took turns; such releases are not used by this attack
        there_adds = _added(entry, *inside)
        away_adds = np.zeros_like(there_adds) if outside is None else _added(entry, *outside)
        adds, expected = there_adds - away_adds, (there_adds + away_adds).sum(axis=0) / 2  # no coin is known
        if isinstance(entry.event, SelectionEvent):
            before = log_odds(entry, expected)
            with_one = np.array([log_odds(entry, expected + one) for one in adds])
            scores += (with_one - before)[:, int(entry.value[0])]
            continue
        sigma = attacker.sigma(entry)
        overlap += (adds / sigma) @ (adds / sigma).T
        evidence += (adds / sigma) @ ((entry.value.ravel() - expected) / sigma)
    # Coins of ±1/2 have variance 1/4.
    scores += np.linalg.solve(overlap + 4.0 * np.eye(canaries), evidence)
    return there, scores, model.certificate_.delta, float(np.sqrt(np.diag(overlap)).mean())


def _added(entry: Entry, X: Array, y: Array) -> Array:
    """Return what each canary would add to a release, one row per canary."""
    query, clip = entry.queries[0], entry.event.sensitivity.zero_out
    rows = X if entry.through is None else X @ entry.through.T
    number, each, width = rows.shape
    try:  # all at once, each canary as a block of its own
        flat, targets = read_only(np.ascontiguousarray(rows.reshape(-1, width))), read_only(y.ravel())
        with np.errstate(all="ignore"):
            sums = query.block_sums(flat, targets, np.arange(number + 1) * each, clip, 1)
        if sums.shape == (number, query.coordinates):
            return np.asarray(sums, dtype=np.float64)
    except Exception:
        pass  # one by one below, without those that fail, as federations do
    alone = (added_by(query, (own, targets), clip) for own, targets in zip(rows, y, strict=True))
    return np.array([np.zeros(query.coordinates) if one is None else one for one in alone])
