"""Audit with a single run: hundreds of canaries at once, each included by an independent fair coin.

For mechanisms too expensive to run thousands of times. Canaries are extreme users in random directions, so that they
hardly interfere; the attacker scores each by the likelihood ratio of all releases and guesses only where it is most
confident (Steinke, Nasr and Jagielski 2023).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tacitly.audit.attack import Attacker, log_odds
from tacitly.audit.bounds import Bound, from_one_run
from tacitly.audit.sensitivity import added_by
from tacitly.audit.worlds import ROWS, Worlds
from tacitly.data.cohort import Cohort
from tacitly.methods.base import PrivateModel
from tacitly.privacy.guarantee import SelectionEvent

_GUESSES = 0.1


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
        The estimator to attack; its unit must be the user.
    canaries
        Number of users, each included with probability one half.
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
    X = 1e3 * rng.normal(size=(canaries, ROWS, n_features))
    y = 1e3 * np.einsum("cmd,cd->cm", X, rng.normal(size=(canaries, n_features)))
    labels = estimator.audit_labels
    if labels is not None:
        y = np.where(y > 0, labels[1], labels[0])
    there = rng.random(canaries) < 0.5
    rows = np.where(there[:, None, None], X, np.nan).reshape(-1, n_features)
    names = tuple(f"x{j}" for j in range(n_features))
    cohort = Cohort(rows, y.ravel(), np.arange(canaries + 1) * ROWS, np.arange(canaries), names, "y")
    attacker = Attacker(estimator, Worlds(cohort, cohort))
    model, entries = attacker.run(cohort)
    scores = np.zeros(canaries)
    everybody = replace(cohort, X=X.reshape(-1, n_features))
    y = np.asarray(attacker.estimator.as_asked(everybody).y, dtype=np.float64).reshape(y.shape)
    for entry in entries:
        if len(entry.queries) > 1:
            continue  # groups of users took turns; such releases are not used by this attack
        query, event = entry.queries[0], entry.event
        rows = X if entry.through is None else X @ entry.through.T
        each = [added_by(query, (rows[i], y[i]), event.sensitivity.zero_out) for i in range(canaries)]
        added = np.array([np.zeros(query.coordinates) if one is None else one for one in each])
        # No coin is known, so the expected sum is half of all contributions.
        if isinstance(event, SelectionEvent):
            before = log_odds(entry, added.sum(axis=0) / 2)
            with_one = np.array([log_odds(entry, added.sum(axis=0) / 2 + one) for one in added])
            scores += (with_one - before)[:, int(entry.value[0])]
            continue
        rest = entry.value.ravel() - added.sum(axis=0) / 2
        scores += added @ rest / event.sigma**2
    guesses = max(2, int(_GUESSES * canaries)) // 2
    order = np.argsort(scores)
    right = int(np.count_nonzero(there[order[-guesses:]]) + np.count_nonzero(~there[order[:guesses]]))
    return from_one_run(right, 2 * guesses, canaries, model.certificate_.delta, confidence=confidence)
