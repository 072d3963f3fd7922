"""FedPower with a sound guarantee: top components of all users' rows, from noisy sums only.

FedPower (Guo et al. 2021) alternates local power steps with noisy averages. Its noise does not give the privacy it
states (see :mod:`tacitly.methods.fedpower.as_printed`), so the routes here keep the idea and release other sums:

* ``gram``: a noisy Gram matrix; local steps, alignment and the choice of rank then cost no privacy. If there are many
  features per component, a second measurement along the components follows
  (:mod:`tacitly.methods.fedpower.refinement`).
* ``power``: clipped power steps, if the Gram matrix is too large to be released.
* ``device``: p local steps per round; the unit is the device.
* ``local-noise``: p local steps per round with noise in each; the unit is the row.

A small share of the budget first pays for the scale of the rows (unless their range is public), a centre and a clipping
bound (:mod:`tacitly.methods.fedpower.scale`). Sensitivities and events are in the queries:
:mod:`tacitly.methods.fedpower.gram` and :mod:`tacitly.methods.fedpower.power`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from tacitly.arrays import Array
from tacitly.federation.base import Federation, Query
from tacitly.linalg import orthonormal, unpack_symmetric
from tacitly.methods.fedpower.gram import ShiftedGram
from tacitly.methods.fedpower.power import ALIGNMENTS, DECAYS, DeviceStep, PowerStep, fewer_steps
from tacitly.methods.fedpower.refinement import FIRST_SHARE, measured_again, stands_apart
from tacitly.methods.fedpower.scale import FAR, NEAR, Bounds, are_few, centre_of, chosen_clip
from tacitly.methods.fedpower.spectrum import Spectrum, from_product, spectrum
from tacitly.privacy.calibration import Phase, Plan
from tacitly.privacy.clipping import safe_norm
from tacitly.privacy.guarantee import Budget, GaussianEvent, Unit

ROUTES = ("gram", "power", "device", "local-noise")
_SMALLEST = 2.0**-120  # smallest squared scale of rows that the histogram of norms resolves
_CONSTANT = 0.1  # the constant coordinate, relative to the rows' scale: the mean takes 1 % of the bound


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
    decay: bool | str = False
    iteration_rank: int = 0
    alignment: str = "procrustes"
    turns: int = 1
    sampling_rate: float = 1.0
    seed: int | None = None
    refined: bool = False
    continues: bool = False
    units: int | None = None  # number of units that take part: with few units, scales are released differently
    scale_share: float = 0.02
    centre_share: float = 0.03
    clip_share: float = 0.03

    def __post_init__(self) -> None:
        if self.route not in ROUTES:
            raise ValueError(f"route must be one of {ROUTES}. Found {self.route!r}.")
        if self.alignment not in ALIGNMENTS:
            raise ValueError(f"alignment must be one of {tuple(ALIGNMENTS)}. Found {self.alignment!r}.")
        if self.decay not in DECAYS:
            raise ValueError(f"decay must be one of {DECAYS}. Found {self.decay!r}.")
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
        if self.refined and self.route != "gram":
            raise ValueError(f"refined is for the route 'gram'. Found route {self.route!r}.")
        if self.turns > 1 and self.route not in ("power", "device"):
            raise ValueError(f"participants is for the routes 'power' and 'device'. Found route {self.route!r}.")

    @property
    def schedule(self) -> list[int]:
        """Local steps of each round; with ``decay``, one less or half from round to round (equation 3.15)."""
        steps = [self.local_steps]
        for _ in range(self.rounds - 1):
            steps.append(fewer_steps(steps[-1], self.decay))
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
        if self.continues:
            return Plan(budget, [Phase(name="sum", share=1.0)])
        phases, left = [], 1.0
        if self.bounds is None and self.route in ("gram", "power"):
            phases.append(Phase(name="scale", share=self.scale_share))
            left -= self.scale_share
        if self._shifted:
            phases.append(Phase(name="centre", share=self.centre_share))
            left -= self.centre_share
        left -= self.clip_share
        if self.refined:
            phases.append(Phase(name="clip", share=self.clip_share, releases=2))
            phases.append(Phase(name="sum", share=FIRST_SHARE * left))
            phases.append(Phase(name="step", share=(1 - FIRST_SHARE) * left))
            return Plan(budget, phases)
        releases = {"gram": 1, "local-noise": sum(self.schedule)}.get(self.route, self.rounds)
        phases.append(Phase(name="clip", share=self.clip_share, releases=releases))
        phases.append(Phase(name="sum", share=left, releases=releases))
        return Plan(budget, phases, sampling_rate=self.sampling_rate)

    def few(self, plan: Plan) -> bool:
        """Whether scales and bounds are released in the form for few units."""
        return self.units is not None and not self.continues and are_few(plan, self.units)

    def events(self, plan: Plan) -> list[GaussianEvent]:
        """List every release that will be made, in order."""
        acute = set() if self.few(plan) else {"scale", "clip"}
        return plan.events(acute | {"sum"} if self.route == "gram" else acute)


def learn(federation: Federation, plan: Plan, settings: Settings, rank: int | None) -> Spectrum:
    """Learn ``rank`` components; None for as many as exceed the noise."""
    if settings.route == "gram":
        return _from_gram(federation, plan, settings, rank)
    if settings.route == "local-noise":
        return _from_noisy_local_steps(federation, plan, settings, rank)
    return _from_steps(federation, plan, settings, rank)


@dataclass(frozen=True)
class Stream:
    """A noisy Gram matrix, to which Gram matrices of further rows are added. All of it is public."""

    query: ShiftedGram
    clip: float
    matrix: Array
    sigma: float
    rows: float | None


def learn_more(
    federation: Federation, plan: Plan, settings: Settings, rank: int | None, stream: Stream | None
) -> tuple[Spectrum, Stream]:
    """Add the noisy Gram matrix of these rows to that of earlier ones; compute components from the sum.

    The first call pays for scale, centre and bound; later calls use them and spend the whole budget on the matrix. Sums
    of independent releases are post-processing; the variance of the sum's noise is the sum of their variances.
    """
    rows = float(federation.n_rows) if settings.unit is Unit.ROW else None
    if stream is None:
        stream = Stream(*_first_gram(federation, plan, settings), rows)
    else:
        event = plan.event("sum", clip=stream.clip, acute=True)
        released = federation.release(stream.query, event, "gram matrix of further rows")
        matrix = stream.matrix + unpack_symmetric(released, federation.n_features + 1)
        known = None if rows is None or stream.rows is None else rows + stream.rows
        stream = Stream(stream.query, stream.clip, matrix, math.hypot(stream.sigma, federation.sum_sigma(event)), known)
    finished = _finished(settings, stream.query, stream.matrix, stream.sigma, stream.rows)
    return _read_off(*finished, stream.sigma / math.sqrt(2), rank), stream


def _first_gram(federation: Federation, plan: Plan, settings: Settings) -> tuple[ShiftedGram, float, Array, float]:
    """Return the query of a Gram matrix, its clipping bound, the noisy matrix and its noise."""
    few = settings.few(plan)
    centre, scale = centre_of(federation, plan, settings.unit, settings.bounds, shifted=settings._shifted, few=few)
    query = ShiftedGram(centre, _CONSTANT * scale, settings.unit)
    clip = chosen_clip(federation, plan, query, "gram matrix", scale**2, few=few)
    event = plan.event("sum", clip=clip, acute=True)
    matrix = unpack_symmetric(federation.release(query, event, "gram matrix"), federation.n_features + 1)
    return query, clip, matrix, federation.sum_sigma(event)


def _from_gram(federation: Federation, plan: Plan, settings: Settings, rank: int | None) -> Spectrum:
    query, clip, matrix, sigma = _first_gram(federation, plan, settings)
    rows = float(federation.n_rows) if settings.unit is Unit.ROW else None
    gram, mean, n_rows = _finished(settings, query, matrix, sigma, rows)
    entry = sigma / math.sqrt(2)
    if settings.refined and rank is not None:
        values, vectors = np.linalg.eigh(gram)
        found, known = vectors[:, ::-1][:, :rank], stands_apart(values[::-1], rank, entry)
        matrix, entry = measured_again(
            federation, plan, query, matrix, sigma, clip, found, known=known, few=settings.few(plan)
        )
        gram, mean, n_rows = _finished(settings, query, matrix, sigma, rows)
    return _read_off(gram, mean, n_rows, entry, rank)


def _read_off(gram: Array, mean: Array, n_rows: float, entry: float, rank: int | None) -> Spectrum:
    """Return the components of a matrix whose entries have noise ``entry`` (off the diagonal)."""
    values, vectors = np.linalg.eigh(gram)
    values, vectors = values[::-1], vectors[:, ::-1]
    level = entry * math.sqrt(len(gram))
    if rank is None:
        edge = 2.2 * level if level > 0 else 1e-10 * max(float(values[0]), 0.0)
        rank = max(1, int(np.count_nonzero(values > edge)))
    found = spectrum(vectors[:, :rank].T, values, level, entry, mean, n_rows)
    return replace(found, total=float(np.trace(gram)), all_values=values)


def _finished(
    settings: Settings, query: ShiftedGram, matrix: Array, sigma: float, rows: float | None
) -> tuple[Array, Array, float]:
    """Return the Gram matrix of the rows (centred or as given), their mean (or zero) and their number."""
    centre, missed = query.centre, matrix[:-1, -1] / query.constant
    weight = float(matrix[-1, -1]) / query.constant**2
    n_rows = _count(rows, weight, sigma / query.constant**2)
    if settings.centered:
        return matrix[:-1, :-1] - np.outer(missed, missed) / n_rows, centre + missed / n_rows, n_rows
    cross = np.outer(missed, centre)
    gram = matrix[:-1, :-1] + cross + cross.T + n_rows * np.outer(centre, centre)
    return gram, np.zeros(len(centre)), n_rows


def _from_steps(federation: Federation, plan: Plan, settings: Settings, rank: int | None) -> Spectrum:
    d = federation.n_features
    width, few = _width(settings, rank, d), settings.few(plan)
    if settings.route == "power":
        centre, scale = centre_of(federation, plan, settings.unit, settings.bounds, shifted=settings._shifted, few=few)
    else:
        centre, scale = np.zeros(d), 1.0
    constant = _CONSTANT * scale
    basis = orthonormal(np.random.default_rng(settings.seed).normal(size=(d, width)))[0]
    product, noise, n_rows, mean = np.zeros((d, width)), 0.0, 0.0, np.zeros(d)

    known_rows = float(federation.n_rows) if settings.unit is Unit.ROW and settings.turns == 1 else None
    asked: list[PowerStep | DeviceStep] = []  # queries of the last round if groups take turns, and their results
    parts: list[tuple[Array, float, Array]] = []

    def make_query(basis: Array, steps: int) -> PowerStep | DeviceStep:
        if settings.route == "device":
            return DeviceStep(basis, steps, settings.alignment)
        return PowerStep(basis, centre, constant, settings.unit)

    def product_of(query: Query, released: Array, sigma: float) -> tuple[Array, float, Array]:
        if isinstance(query, DeviceStep):
            return released.reshape(d, width), float(federation.n_rows if settings.unit is Unit.ROW else 0), np.zeros(d)
        assert isinstance(query, PowerStep)
        moved, missed, weight = query.split(released)
        rows = _count(known_rows, weight, sigma / query.constant**2)
        if settings.centered:
            return moved - np.outer(missed, missed @ query.basis) / rows, rows, centre + missed / rows
        along = centre @ query.basis
        return moved + np.outer(missed, along) + np.outer(centre, missed @ query.basis + rows * along), rows, mean

    for number, steps in enumerate(settings.schedule):
        query = make_query(basis, steps)
        name = f"step {number + 1}"
        reach = NEAR if settings.route == "power" else FAR
        clip = chosen_clip(federation, plan, query, name, scale**2, few=few, turns=settings.turns, reach=reach)
        event = plan.event("sum", clip=clip)
        # If groups take turns, the sum of a turn has the noise of that group's messages only.
        last = federation.group_of(settings.turns, settings.turns - 1)
        noise = federation.sum_sigma(event, int(np.count_nonzero(last)))
        if settings.turns == 1:
            product, n_rows, mean = product_of(query, federation.release(query, event, name), noise)
            basis = orthonormal(product)[0]
            continue
        start, first = basis, steps

        def after(
            released: list[Array], start: Array = start, steps: int = first, noise: float = noise
        ) -> PowerStep | DeviceStep:
            """Return the next group's query, with the basis from earlier groups."""
            here = start
            for vector in released:
                here = orthonormal(product_of(make_query(here, steps), vector, noise)[0])[0]
            return make_query(here, steps)

        turns = list(federation.release_in_turns(after, settings.turns, event, name))
        asked = [after(turns[:turn]) for turn in range(len(turns))]
        parts = [product_of(query, vector, noise) for query, vector in zip(asked, turns, strict=True)]
        basis = orthonormal(parts[-1][0])[0]
    if settings.turns > 1:
        product, noise = _all_turns([query.basis for query in asked], [part[0] for part in parts], noise)
        n_rows = sum(part[1] for part in parts)
        mean = sum((part[1] * part[2] for part in parts), np.zeros(d)) / max(n_rows, 1.0)
    # A sample covers a public share of all users: dividing by it gives the sum over all.
    share = settings.sampling_rate
    known_steps = settings.rounds if settings.route == "power" and share == 1.0 and settings.turns == 1 else None
    return from_product(product / share, noise / share, rank, mean, n_rows / share, known_steps)


def _all_turns(bases: list[Array], products: list[Array], noise: float) -> tuple[Array, float]:
    """Add up the products of all groups of the last round, each rotated from its own basis to that of the last group.

    If the last group's product alone represented all groups, its noise would be multiplied by ``turns``; the sum has
    only √turns times the noise. Rotation by an orthogonal matrix does not change noise of equal variances, so the added
    noises are independent. All of it reads released sums only: post-processing.
    """
    align = ALIGNMENTS["procrustes"]
    turned = [product @ align(basis, bases[-1]) for basis, product in zip(bases, products, strict=True)]
    return np.asarray(np.sum(turned, axis=0)), noise * math.sqrt(len(products))


def _from_noisy_local_steps(federation: Federation, plan: Plan, settings: Settings, rank: int | None) -> Spectrum:
    """Let every device take its own noisy steps; their results are public, so devices may align with each other."""
    d = federation.n_features
    width, few = _width(settings, rank, d), settings.few(plan)
    basis = orthonormal(np.random.default_rng(settings.seed).normal(size=(d, width)))[0]
    n, product, noise, number, zero = federation.n_users, np.zeros((d, width)), 0.0, 0, np.zeros(d)
    for steps in settings.schedule:
        local = [basis] * n
        for _ in range(steps):
            number += 1
            name = f"local step {number}"
            clip = chosen_clip(federation, plan, PowerStep(basis, zero, 1e-6), name, 1.0, few=few, reach=FAR)
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


def _count(rows: float | None, released: float, sigma: float) -> float:
    """Return the total weight of rows in the sum, from its released value, which has noise ``sigma``.

    Rows that are clipped, or whose device does not take part, weigh less than one. If the unit is the row, the number
    of rows is public, and it is the better estimate as long as noise alone explains the difference.
    """
    if rows is None:
        return max(released, 1.0)
    return rows if released > rows - 3 * sigma else max(released, 1.0)


def _width(settings: Settings, rank: int | None, d: int) -> int:
    wanted = settings.iteration_rank or 2 * (rank or 10)
    return min(d, max(wanted, rank or 1))
