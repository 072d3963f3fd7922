"""FedPower with a sound guarantee: top components of all users' rows, from noisy sums only.

FedPower (Guo et al. 2021) alternates local power steps with noisy averages. Its noise does not give the privacy it
states (see :mod:`tacitly.methods.fedpower.as_printed`), so the routes here keep the idea and release other sums:

* ``gram``: one noisy Gram matrix; local steps, alignment and the choice of rank then cost no privacy.
* ``power``: clipped power steps, for a Gram matrix that is too large to be released.
* ``device``: p local steps per round; the unit is the device.
* ``local-noise``: p local steps per round with noise in each; the unit is the row.

A small share of the budget first pays for the scale of the rows (unless their range is public), a centre and a clip
(:mod:`tacitly.methods.fedpower.scale`). Sensitivities and events are in the queries:
:mod:`tacitly.methods.fedpower.gram` and :mod:`tacitly.methods.fedpower.power`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tacitly.arrays import Array
from tacitly.federation.base import Federation, Query
from tacitly.linalg import orthonormal, unpack_symmetric
from tacitly.methods.fedpower.gram import ShiftedGram
from tacitly.methods.fedpower.power import ALIGNMENTS, DeviceStep, PowerStep
from tacitly.methods.fedpower.scale import Bounds, centre_of, chosen_clip
from tacitly.methods.fedpower.spectrum import Spectrum, from_product, spectrum
from tacitly.privacy.calibration import Phase, Plan
from tacitly.privacy.clipping import safe_norm
from tacitly.privacy.guarantee import Budget, GaussianEvent, Unit

ROUTES = ("gram", "power", "device", "local-noise")
_SMALLEST = 2.0**-120  # smallest squared scale of rows that the histogram of norms resolves
_CONSTANT = 0.1  # the constant coordinate, relative to the rows' scale: the mean takes 1 % of the clip


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The route, its public parameters, and how the budget is divided."""

    unit: Unit = Unit.ROW
    route: str = "gram"
    centered: bool = False
    low: Array | None = None
    high: Array | None = None
    sparse: bool = False
    rounds: int = 8
    local_steps: int = 1
    decay: bool = False
    iteration_rank: int = 0
    alignment: str = "procrustes"
    turns: int = 1
    sampling_rate: float = 1.0
    seed: int | None = None
    scale_share: float = 0.02
    centre_share: float = 0.03
    clip_share: float = 0.03

    def __post_init__(self) -> None:
        if self.route not in ROUTES:
            raise ValueError(f"route must be one of {ROUTES}. Found {self.route!r}.")
        if self.alignment not in ALIGNMENTS:
            raise ValueError(f"alignment must be one of {tuple(ALIGNMENTS)}. Found {self.alignment!r}.")
        if self.rounds < 1 or self.local_steps < 1:
            raise ValueError(f"rounds and local_steps must be at least 1. Found {self.rounds}, {self.local_steps}.")
        units = {"device": (Unit.USER,), "local-noise": (Unit.ROW,)}.get(self.route, (Unit.ROW, Unit.USER))
        if self.unit not in units:
            raise ValueError(f"route {self.route!r} protects unit {units[0].value!r}. Found unit {self.unit.value!r}.")
        if self.local_steps > 1 and self.route not in ("device", "local-noise"):
            raise ValueError(
                f"local_steps > 1 is for the routes 'device' and 'local-noise'. Found route {self.route!r}: between "
                "two of its sums there is nothing to compute locally."
            )
        if self.route in ("device", "local-noise") and self.centered:
            raise ValueError(
                f"route {self.route!r} does not centre rows. Found center=True. Use center=False or route='gram'."
            )
        if self.sampling_rate < 1 and (self.route not in ("power", "device") or self.unit is not Unit.USER):
            raise ValueError(
                "sampling_rate < 1 hides which users take part in a round: it needs unit='user' and route 'power' or "
                f"'device'. Found unit {self.unit.value!r} and route {self.route!r}."
            )
        if self.sampling_rate < 1 and self.turns > 1:
            raise ValueError(
                "participants and sampling_rate do not go together: groups that take turns are public, coins are not. "
                f"Found sampling_rate {self.sampling_rate!r} and {self.turns} groups."
            )
        if self.bounds is not None:
            low, high = self.bounds
            if not _SMALLEST <= (safe_norm(high - low)[0] / 2) ** 2 <= 1 / _SMALLEST:
                raise ValueError(
                    "half the norm of high - low in feature_range must lie between 2^-60 and 2^60: outside it squares "
                    "of the features lose digits. Rescale the features."
                )
        if self.turns > 1 and self.route not in ("power", "device"):
            raise ValueError(f"participants is for the routes 'power' and 'device'. Found route {self.route!r}.")

    @property
    def schedule(self) -> list[int]:
        """Local steps of each round; with ``decay`` they are halved from round to round (equation 3.15)."""
        steps = [self.local_steps]
        for _ in range(self.rounds - 1):
            steps.append(max(1, steps[-1] // 2) if self.decay else steps[-1])
        return steps

    @property
    def bounds(self) -> Bounds | None:
        """Public range of the features, or None."""
        return None if self.low is None or self.high is None else (self.low, self.high)

    @property
    def _shifted(self) -> bool:
        return self.route in ("gram", "power") and not self.sparse

    def plan(self, budget: Budget) -> Plan:
        """Divide a budget among the phases."""
        phases, left = [], 1.0
        if self.bounds is None and self.route in ("gram", "power"):
            phases.append(Phase(name="scale", share=self.scale_share))
            left -= self.scale_share
        if self._shifted:
            phases.append(Phase(name="centre", share=self.centre_share))
            left -= self.centre_share
        releases = {"gram": 1, "local-noise": sum(self.schedule)}.get(self.route, self.rounds)
        phases.append(Phase(name="clip", share=self.clip_share, releases=releases))
        phases.append(Phase(name="sum", share=left - self.clip_share, releases=releases))
        return Plan(budget, phases, sampling_rate=self.sampling_rate)

    def events(self, plan: Plan) -> list[GaussianEvent]:
        """List every release that will be made, in order."""
        acute = {"scale": True, "centre": False, "clip": True, "sum": self.route == "gram"}
        return [
            plan.event(phase.name, clip=1.0, acute=acute[phase.name])
            for phase in plan.phases
            for _ in range(phase.releases)
        ]


def learn(federation: Federation, plan: Plan, settings: Settings, rank: int | None) -> Spectrum:
    """Learn ``rank`` components; None for as many as exceed the noise."""
    if settings.route == "gram":
        return _from_gram(federation, plan, settings, rank)
    if settings.route == "local-noise":
        return _from_noisy_local_steps(federation, plan, settings, rank)
    return _from_steps(federation, plan, settings, rank)


def _from_gram(federation: Federation, plan: Plan, settings: Settings, rank: int | None) -> Spectrum:
    d = federation.n_features
    centre, scale = centre_of(federation, plan, settings.unit, settings.bounds, shifted=settings._shifted)
    query = ShiftedGram(centre, _CONSTANT * scale, settings.unit)
    clip = chosen_clip(federation, plan, query, "gram matrix", scale**2)
    event = plan.event("sum", clip=clip, acute=True)
    matrix = unpack_symmetric(federation.release(query, event, "gram matrix"), d + 1)
    sigma = federation.sum_sigma(event)

    missed = matrix[:-1, -1] / query.constant
    weight = float(matrix[-1, -1]) / query.constant**2
    n_rows = _count(federation, settings, weight, sigma / query.constant**2)
    gram = matrix[:-1, :-1]
    if settings.centered:
        gram = gram - np.outer(missed, missed) / n_rows
    else:
        cross = np.outer(missed, centre)
        gram = gram + cross + cross.T + n_rows * np.outer(centre, centre)
    values, vectors = np.linalg.eigh(gram)
    values, vectors = values[::-1], vectors[:, ::-1]
    level = sigma * math.sqrt(d / 2)
    if rank is None:
        edge = 2.2 * level if level > 0 else 1e-10 * max(float(values[0]), 0.0)
        rank = max(1, int(np.count_nonzero(values > edge)))
    mean = centre + missed / n_rows if settings.centered else np.zeros(d)
    return spectrum(vectors[:, :rank].T, values, level, sigma / math.sqrt(2), mean, n_rows)


def _from_steps(federation: Federation, plan: Plan, settings: Settings, rank: int | None) -> Spectrum:
    d = federation.n_features
    width = _width(settings, rank, d)
    if settings.route == "power":
        centre, scale = centre_of(federation, plan, settings.unit, settings.bounds, shifted=settings._shifted)
    else:
        centre, scale = np.zeros(d), 1.0
    constant = _CONSTANT * scale
    basis = orthonormal(np.random.default_rng(settings.seed).normal(size=(d, width)))[0]
    product, noise, n_rows, mean = np.zeros((d, width)), 0.0, 0.0, np.zeros(d)

    def make_query(basis: Array, steps: int) -> Query:
        if settings.route == "device":
            return DeviceStep(basis, steps, settings.alignment)
        return PowerStep(basis, centre, constant, settings.unit)

    def product_of(query: Query, released: Array, sigma: float) -> tuple[Array, float, Array]:
        if isinstance(query, DeviceStep):
            return released.reshape(d, width), float(federation.n_rows if settings.unit is Unit.ROW else 0), np.zeros(d)
        assert isinstance(query, PowerStep)
        moved, missed, weight = query.split(released)
        rows = _count(federation, settings, weight, sigma / query.constant**2)
        if settings.centered:
            return moved - np.outer(missed, missed @ query.basis) / rows, rows, centre + missed / rows
        along = centre @ query.basis
        return moved + np.outer(missed, along) + np.outer(centre, missed @ query.basis + rows * along), rows, mean

    for number, steps in enumerate(settings.schedule):
        query = make_query(basis, steps)
        name = f"step {number + 1}"
        clip = chosen_clip(federation, plan, query, name, scale**2, turns=settings.turns)
        event = plan.event("sum", clip=clip)
        # Where groups take turns, the sum of a turn has the noise of that group's messages only.
        last = federation.group_of(settings.turns, settings.turns - 1)
        noise = federation.sum_sigma(event, int(np.count_nonzero(last)))
        if settings.turns == 1:
            product, n_rows, mean = product_of(query, federation.release(query, event, name), noise)
            basis = orthonormal(product)[0]
            continue
        start, first = basis, steps

        def after(released: list[Array], start: Array = start, steps: int = first, noise: float = noise) -> Query:
            """Return the next group's query, at the basis that earlier groups arrived at."""
            here = start
            for vector in released:
                here = orthonormal(product_of(make_query(here, steps), vector, noise)[0])[0]
            return make_query(here, steps)

        turns = list(federation.release_in_turns(after, settings.turns, event, name))
        product, n_rows, mean = product_of(after(turns[:-1]), turns[-1], noise)
        basis = orthonormal(product)[0]
    # A turn, or a sample, covers a public share of all users: dividing by it gives the sum over all.
    share = settings.sampling_rate / settings.turns
    known_steps = settings.rounds if settings.route == "power" and share == 1.0 else None
    return from_product(product / share, noise / share, rank, mean, n_rows / share, known_steps)


def _from_noisy_local_steps(federation: Federation, plan: Plan, settings: Settings, rank: int | None) -> Spectrum:
    """Let every device take its own noisy steps; their results are public, so devices may align with each other."""
    d = federation.n_features
    width = _width(settings, rank, d)
    basis = orthonormal(np.random.default_rng(settings.seed).normal(size=(d, width)))[0]
    n, product, noise, number, zero = federation.n_users, np.zeros((d, width)), 0.0, 0, np.zeros(d)
    for steps in settings.schedule:
        local = [basis] * n
        for _ in range(steps):
            number += 1
            name = f"local step {number}"
            clip = chosen_clip(federation, plan, PowerStep(basis, zero, 1e-6), name, 1.0)
            event = plan.event("sum", clip=clip)
            queries = [PowerStep(current, zero, 1e-6) for current in local]
            answers = federation.release_each(queries, event, name)
            noise = event.sigma * math.sqrt(n)
            products = [query.split(answer)[0] for query, answer in zip(queries, answers, strict=True)]
            before, local = local, [orthonormal(each)[0] for each in products]
        align: Callable[[Array, Array], Array] = ALIGNMENTS[settings.alignment]
        product = sum(
            (each @ align(old, before[0]) for each, old in zip(products, before, strict=True)), np.zeros((d, width))
        )
        basis = orthonormal(product)[0]
    return from_product(product, noise, rank, zero, float(federation.n_rows), None)


def _count(federation: Federation, settings: Settings, released: float, sigma: float) -> float:
    """Return the total weight of rows in the sum, from its released value, which has noise ``sigma``.

    Rows that are clipped, or whose device does not take part, weigh less than one. Where the unit is the row, the
    number of rows is public, and it is the better estimate as long as noise alone explains the difference.
    """
    if settings.unit is not Unit.ROW or settings.turns > 1:
        return max(released, 1.0)
    rows = float(federation.n_rows)
    return rows if released > rows - 3 * sigma else max(released, 1.0)


def _width(settings: Settings, rank: int | None, d: int) -> int:
    wanted = settings.iteration_rank or 2 * (rank or 10)
    return min(d, max(wanted, rank or 1))
