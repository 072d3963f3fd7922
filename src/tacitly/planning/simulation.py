"""Fit methods on synthetic users, at chosen noise levels, and compare their errors with those of users alone.

The noise of a plan is exact: every release is a sum with Gaussian noise of standard deviation c/μ, where μ follows from
(ε, δ). A method uses the mean over n users, whose noise is c/(n·μ). So n users at ε have the same noise as m users at
the ε' with m·μ(ε') = n·μ(ε), and one number, the *noise level* n·μ, describes both. Very many users are simulated by
fewer users with the same noise level. What then differs is the sampling error of users, which is larger for fewer
users, with privacy and without.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tacitly.arrays import Array
from tacitly.baselines.comparison import LOCAL, MEANS
from tacitly.methods.registry import Method
from tacitly.planning.made_up import MadeUp, Population
from tacitly.privacy.accounting import epsilon_of, mu_of
from tacitly.privacy.certificate import Certificate

ALONE = (MEANS, LOCAL)
"""Errors of users without sharing; one model for all is not one of them, because it needs the rows of all users."""

MOST_WORK = 2e5
"""Largest users × weights² of one simulated fit: about half a second on one core."""

FEWEST = 500

BLOCKS = 4
"""Number of blocks of repetitions with different users; later blocks differ only in their noise."""

OnStep = Callable[[str], None]


def simulated_users(users: int, features: int) -> int:
    """Return how many users are simulated in place of ``users``.

    >>> simulated_users(400, 10), simulated_users(100_000, 10), simulated_users(3000, 40)
    (400, 1652, 500)
    """
    weights = features + 1
    return min(users, max(FEWEST, int(MOST_WORK / weights**2)))


@dataclass
class Simulation:
    """Repeated fits on synthetic users; every fit is computed only once.

    Repetitions come in blocks of ``repeats``. Every block has its own noise; the first ``BLOCKS`` blocks have their own
    users, which later blocks use again.
    """

    population: Population
    n_users: int
    repeats: int
    delta: float
    adjacency: str
    random_state: int = 0
    on_step: OnStep | None = None
    certificates: dict[tuple[str, float], Certificate] = field(default_factory=dict)
    _made_up: list[MadeUp] = field(default_factory=list)
    _others: list[dict[str, float]] = field(default_factory=list)
    _errors: dict[tuple[str, float, int], Array] = field(default_factory=dict)

    def errors(self, method: Method, parameters: Mapping[str, Any], level: float, block: int = 0) -> Array:
        """Return the error of each repetition of a block at a noise level n·μ, infinite for no privacy."""
        key = (method.name, level, block if math.isfinite(level) else block % BLOCKS)
        if key not in self._errors:
            runs = range(key[2] * self.repeats, (key[2] + 1) * self.repeats)
            self._errors[key] = np.array([self._fitted(method, parameters, level, number) for number in runs])
        return self._errors[key]

    def others(self, block: int = 0) -> dict[str, Array]:
        """Return the errors of users alone, and of one model for all."""
        self._draw(block)
        first = block % BLOCKS * self.repeats
        found = self._others[first : first + self.repeats]
        return {name: np.array([errors[name] for errors in found]) for name in found[0]}

    def level(self, epsilon: float, users: int) -> float:
        """Return the noise level n·μ of that many users at ε."""
        return users * mu_of(epsilon, self.delta)

    def _draw(self, block: int) -> None:
        while len(self._made_up) < (block % BLOCKS + 1) * self.repeats:
            rng = np.random.default_rng([self.random_state, len(self._made_up)])
            drawn = self.population.draw(self.n_users, rng)
            self._others.append(self.population.others(drawn))
            self._made_up.append(drawn)
            self._done("users alone")

    def _fitted(self, method: Method, parameters: Mapping[str, Any], level: float, number: int) -> float:
        self._draw(number // self.repeats)
        drawn = self._made_up[number % (BLOCKS * self.repeats)]
        private = math.isfinite(level)
        epsilon = epsilon_of(level / self.n_users, self.delta) if private else math.inf
        seed = {"noise_seed": 1000 * self.random_state + number} if private else {}
        budget = {"epsilon": epsilon, "delta": self.delta, "adjacency": self.adjacency}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # synthetic data and seeded noise: nothing here is certified
            model = method.build(**parameters, **budget, **seed).fit(drawn.train)
        self.certificates[method.name, level] = model.certificate_
        self._done(method.name)
        return self.population.error(model, drawn)

    def _done(self, what: str) -> None:
        if self.on_step is not None:
            self.on_step(what)
