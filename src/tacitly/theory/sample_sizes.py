"""How many users with how many rows? The papers' rates, solved for the number of users."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from tacitly.privacy.accounting import mu_of
from tacitly.privacy.guarantee import check_target, positive
from tacitly.theory import centaur, low_rank_sparse, private_fedrep, trace_regression

_MOST = 1e15


@dataclass(frozen=True)
class Needed:
    """The answer: ``users``, ``rows`` per user, the terms of the error for them, and which term is the largest."""

    users: int
    rows: int
    terms: dict[str, float]
    theorem: str

    @property
    def decided_by(self) -> str:
        """Name of the largest term: what to improve first."""
        return max(self.terms, key=lambda name: self.terms[name])


@dataclass(frozen=True)
class _Question:
    """Everything that a rate may depend on."""

    epsilon: float
    delta: float
    features: int
    rank: int
    rows: int
    noise: float
    head: float
    sparsity: int
    columns: int
    constant: float


def how_many(
    method: str, *, error: float, epsilon: float, features: int, rank: int, delta: float = 1e-6,
    rows: int | None = None, noise: float = 1.0, head: float = 1.0, sparsity: int = 1, columns: int | None = None,
    constant: float = 1.0,
) -> Needed:  # fmt: skip
    """Return how many users, and rows per user, the theorem of a method needs for an error.

    Parameters
    ----------
    method
        ``"private_fedrep"`` and ``"low_rank_sparse"``: ``error`` is the excess risk (Theorem 10; Theorems 1 and 3).
        ``"centaur"``: the sine of the angle between bases (Theorems 5.1 and 5.2). ``"fedpower"``: the same for the
        default route, one Gram matrix of rows of norm 1 whose mean product has eigenvalue gap ``head``; users are rows.
        ``"trace_regression"``: ‖M̃ − M‖_F (Theorem 3); users are observations.
    rows
        Rows of each user. None: so many that a quarter of the error remains for terms that more users do not reduce
        (1 if the unit is a row).
    noise, head, sparsity, columns
        Label noise, norm of heads (or the gap, or the least singular value), personal coordinates, columns of the
        matrix (``features`` are its rows).
    constant
        Factor that all rates hide. 1 is optimistic by the paper's logarithms: use it to compare settings, or fit it
        to one measured error, ``constant = measured/predicted``.

    Examples
    --------
    >>> need = how_many("private_fedrep", error=0.1, epsilon=1.0, features=50, rank=2)
    >>> need.users, need.rows, need.decided_by
    (374, 80, 'privacy')
    >>> how_many("private_fedrep", error=0.1, epsilon=0.5, features=50, rank=2).users
    739
    """
    if method not in _RATES:
        raise ValueError(f"method must be one of {', '.join(sorted(_RATES))}. Found {method!r}.")
    positive(error=error, features=features, rank=rank, head=head, constant=constant)
    check_target(epsilon, delta)
    if rows is None:
        rows = _own_rows(method, error, rank, sparsity, noise)
    question = _Question(epsilon, delta, features, rank, rows, noise, head, sparsity, columns or features, constant)
    rate, theorem = _RATES[method]
    users = _smallest(lambda n: sum(rate(n, question).values()) <= error)
    if users is None:
        at_most = rate(_MOST, question)
        worst = max(at_most, key=lambda name: at_most[name])
        raise ValueError(
            f"no number of users is enough: {theorem} keeps {at_most[worst]:.3g} from {worst!r} with {rows} rows of "
            f"each, above the error {error!r}. Give more rows, or a larger error."
        )
    return Needed(users, rows, rate(users, question), theorem)


def _own_rows(method: str, error: float, rank: int, sparsity: int, noise: float) -> int:
    """Return rows per user for which the terms that more users do not reduce are a quarter of the error."""
    if method in ("fedpower", "trace_regression"):
        return 1
    alone = float(rank)
    if method == "low_rank_sparse":
        alone += sparsity + (rank**1.5 + math.sqrt(sparsity)) ** 2
    return max(2 * rank, math.ceil(4 * noise**2 * alone / error))


def _private_fedrep(n: float, q: _Question) -> dict[str, float]:
    terms = private_fedrep.excess_risk(
        n, q.rows, q.features, q.rank, q.epsilon, noise=q.noise, head=q.head, smallest=q.head, largest=q.head,
        constant=q.constant,
    )  # fmt: skip
    return dict(zip(("privacy", "sampling", "heads"), terms, strict=True))


def _low_rank_sparse(n: float, q: _Question) -> dict[str, float]:
    sampling, privacy = low_rank_sparse.private_risk(
        n, q.rows, q.features, q.rank, q.sparsity, q.epsilon, q.delta, noise=q.noise, smallest=q.head**2,
        largest=q.head**2, constant=q.constant,
    )  # fmt: skip
    heads = q.noise**2 * (q.rank + q.sparsity) / q.rows
    return {"privacy": privacy, "sampling": sampling, "heads": heads}


def _centaur(n: float, q: _Question) -> dict[str, float]:
    if n < 3:
        return {"privacy": math.inf}
    # σ for which T rounds cost ε exactly, with T from the recursion for the floor; two iterations fix the logarithm.
    floor, sigma = 0.1, 1.0
    for _ in range(8):
        steps = centaur.rounds(min(floor, 0.19))
        sigma = math.sqrt(steps) / mu_of(q.epsilon, q.delta)
        floor = centaur.utility(n, q.features, q.rank, sigma, constant=q.constant)
    return {"privacy": floor}


def _fedpower(n: float, q: _Question) -> dict[str, float]:
    # The noise of an off-diagonal entry of one Gram matrix, σ/√2 with σ = 1/μ, rotates a direction by its ratio to the
    # gap.
    sigma = 1.0 / mu_of(q.epsilon, q.delta)
    privacy = sigma * math.sqrt(q.features / 2) / (n * q.head)
    return {"privacy": q.constant * privacy, "sampling": q.constant * math.sqrt(q.features / n) / q.head}


def _trace_regression(n: float, q: _Question) -> dict[str, float]:
    if n < 3:
        return {"privacy": math.inf}
    sampling, privacy = trace_regression.loop_rate(
        n, q.features, q.columns, q.rank, q.epsilon, q.delta, smallest=q.head, noise=q.noise, constant=q.constant
    )
    return {"privacy": privacy, "sampling": sampling}


_RATES: dict[str, tuple[Callable[[float, _Question], dict[str, float]], str]] = {
    "centaur": (_centaur, "CENTAUR, Theorems 5.1 and 5.2 (exact ε, zero-out)"),
    "fedpower": (_fedpower, "one noisy Gram matrix, first order"),
    "low_rank_sparse": (_low_rank_sparse, "AMHT-LRS, Theorems 1 and 3"),
    "private_fedrep": (_private_fedrep, "Private FedRep, Theorem 10"),
    "trace_regression": (_trace_regression, "DP-RGrad, Theorem 3"),
}


def _smallest(enough: Callable[[float], bool]) -> int | None:
    """Return the smallest whole number that is enough; None if even 10¹⁵ is not."""
    high = 1.0
    while not enough(high):
        high *= 2
        if high > _MOST:
            return None
    low = high / 2
    while high - low > max(0.5, 1e-9 * high):
        middle = (low + high) / 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return math.ceil(high)
