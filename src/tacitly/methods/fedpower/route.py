"""Choice of the route and the number of power steps, from public numbers only: features, units, budget.

Errors are predicted by the formulas that are used after a fit (:mod:`tacitly.methods.fedpower.spectrum`), with an
assumed spectrum: the j-th eigenvalue decreases like 1/j, as in many tables, and every unit's norm equals the clipping
bound. So n units have eigenvalues n/(j·H), H = 1 + 1/2 + … + 1/d. Noise is 1/μ for one Gram matrix, and √T·κ/μ for each
of T power steps, whose bound κ is the part of a unit's norm along the basis. Local trust multiplies noise by √(users).
"""

from __future__ import annotations

import math

import numpy as np

from tacitly.methods.fedpower.spectrum import error_of_matrix, error_of_steps
from tacitly.privacy.accounting import mu_of
from tacitly.privacy.guarantee import Adjacency, Budget, Unit

GRAM_LIMIT = 4000
"""Most features for which a whole Gram matrix (d²/2 numbers) is released."""

_MOST_ROUNDS = 16


def predicted_error(
    route: str, budget: Budget, *, d: int, units: int, rank: int, rounds: int = 1, messages: int = 1
) -> float:
    """Return the predicted sine of the angle to the true components; above 1 the result is noise.

    ``math.inf`` for a Gram matrix that is too large to be released.

    >>> budget = Budget(epsilon=1.0, delta=1e-6, unit=Unit.ROW)
    >>> [round(predicted_error("gram", budget, d=100, units=n, rank=5), 3) for n in (10_000, 100_000)]
    [0.106, 0.011]
    """
    if route == "gram" and d > GRAM_LIMIT:
        return math.inf
    if not budget.private:
        return 0.0
    mu = mu_of(budget.epsilon, budget.delta)
    if budget.adjacency is Adjacency.REPLACE_ONE:
        mu /= math.sqrt(2.0) if route == "gram" else 2.0
    values = 1.0 / np.arange(1, d + 1)
    values /= values.sum()
    noise = math.sqrt(messages) / (units * mu)
    if route == "gram":
        return error_of_matrix(values, rank, noise / math.sqrt(2.0))
    iterated = values[: min(d, 2 * rank)]
    along = math.sqrt(float(iterated.sum()))
    return error_of_steps(iterated, rank, d, noise * along * math.sqrt(rounds), rounds)


def best_rounds(budget: Budget, *, d: int, units: int, rank: int, messages: int = 1) -> int:
    """Return the number of power steps with the least predicted error: fewer if noise is larger.

    >>> budget = Budget(epsilon=1.0, delta=1e-6, unit=Unit.ROW)
    >>> [best_rounds(budget, d=100, units=n, rank=5) for n in (1_000, 100_000, 10_000_000)]
    [4, 11, 16]
    """
    return min(
        range(2, _MOST_ROUNDS + 1),
        key=lambda t: predicted_error("power", budget, d=d, units=units, rank=rank, rounds=t, messages=messages),
    )


def choose_route(budget: Budget, *, d: int, units: int, rank: int, local_steps: int = 1, messages: int = 1) -> str:
    """Return the route with the smallest predicted error.

    Local steps need the device as unit, or noise in every step, so they determine the route.

    >>> budget = Budget(epsilon=1.0, delta=1e-6, unit=Unit.ROW)
    >>> choose_route(budget, d=100, units=10_000, rank=5), choose_route(budget, d=9000, units=10_000, rank=5)
    ('gram', 'power')
    """
    if local_steps > 1:
        return "device" if budget.unit is Unit.USER else "local-noise"
    known = {"d": d, "units": units, "rank": rank, "messages": messages}
    errors = {
        "gram": predicted_error("gram", budget, **known),
        "power": predicted_error("power", budget, rounds=best_rounds(budget, **known), **known),
    }
    return min(errors, key=lambda route: errors[route])
