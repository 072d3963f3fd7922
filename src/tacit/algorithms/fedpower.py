"""FedPower, sound: top components of everybody's rows from noisy sums only.

Paper 001 (Guo, Li, Chang, Wang and Zhang) alternates local power steps with noisy averages. Its noise does not protect
what it says (see :mod:`tacit.algorithms.paper_fedpower`), so the routes here release other sums and keep the idea:

* ``gram``: one noisy Gram matrix; local steps, alignment and the choice of rank are then free.
* ``power``: clipped power steps, when d² numbers are too many.
* ``device``: p local steps a round, the whole device being the unit.
* ``local-noise``: p local steps a round with noise in each of them, the row being the unit.

Every route first buys the scale of its rows, unless their range is public, then a centre, and a clip: the clip that makes
noise plus what it cuts off smallest, read off a released histogram of norms.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tacit.algorithms.clip_quantile import NormHistogram, bin_edges, quantile_of
from tacit.algorithms.fedpower_gram import CentreVote, ShiftedGram
from tacit.algorithms.fedpower_power import ALIGNMENTS, DeviceStep, PowerStep
from tacit.federation.base import Array, Federation, Query
from tacit.linalg import orthonormal, spike_size, unpack_symmetric
from tacit.privacy.calibration import Phase, Plan
from tacit.privacy.guarantee import Budget, GaussianEvent, Unit

ROUTES = ("gram", "power", "device", "local-noise")
GRAM_LIMIT = 4000
"""Features up to which a Gram matrix (d²/2 numbers) is released whole."""

_PER_OCTAVE = 8  # bins of the histogram that the clip is read off: 9 % apart
_HARM = 0.03  # share of what a clip cuts off that turns components: most of it shrinks them all alike
_CONSTANT = 0.1  # the constant coordinate, of the rows' scale: 1 % of the clip buys the exact mean


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What is asked for, all of it public, and how the budget is divided."""

    unit: Unit = Unit.ROW
    route: str = "gram"
    centered: bool = False
    low: Array | None = None
    high: Array | None = None
    sparse: bool = False
    rounds: int = 6
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
                f"local_steps > 1 is for the routes 'device' and 'local-noise'. Found route {self.route!r}: between two "
                "sums of it there is nothing left to do locally."
            )
        if self.route in ("device", "local-noise") and self.centered:
            raise ValueError(f"route {self.route!r} works on rows as they are. Use center=False, or route='gram'.")
        if self.sampling_rate < 1 and (self.route not in ("power", "device") or self.unit is not Unit.USER):
            raise ValueError(
                "sampling_rate < 1 hides users who are left out of a round: it needs unit='user' and route 'power' or "
                f"'device'. Found unit {self.unit.value!r} and route {self.route!r}."
            )
        if self.turns > 1 and self.route not in ("power", "device"):
            raise ValueError(f"participants is for the routes 'power' and 'device'. Found route {self.route!r}.")

    @property
    def schedule(self) -> list[int]:
        """Local steps in each round; with ``decay`` they are halved from round to round (equation 3.15)."""
        steps = [self.local_steps]
        for _ in range(self.rounds - 1):
            steps.append(max(1, steps[-1] // 2) if self.decay else steps[-1])
        return steps

    @property
    def _bounded(self) -> bool:
        return self.low is not None

    @property
    def _shifted(self) -> bool:
        return self.route in ("gram", "power") and not self.sparse

    def plan(self, budget: Budget) -> Plan:
        """Divide a budget."""
        phases, left = [], 1.0
        if not self._bounded and self.route in ("gram", "power"):
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
        """Every release that will be made."""
        acute = {"scale": True, "centre": False, "clip": True, "sum": self.route == "gram"}
        return [
            plan.event(phase.name, clip=1.0, acute=acute[phase.name])
            for phase in plan.phases
            for _ in range(phase.releases)
        ]


@dataclass(frozen=True)
class Spectrum:
    """What was learned: public. ``values`` have the known noise subtracted; ``floor`` is its largest eigenvalue."""

    components: Array  # k×d
    values: Array
    confidence: Array
    mean: Array
    floor: float
    n_rows: float
    predicted_error: float


def choose_route(d: int, unit: Unit, local_steps: int) -> str:
    """Return the route with the smallest predicted error; all that enters is public.

    Noise in the top components is C²·√(d/2)/μ for a Gram matrix and √T·C²·√d·κ/μ for T power steps, κ ≥ ½ being the
    share of a row's norm that lies along the basis: T ≥ 2 steps are never better, unless d² numbers do not fit. Local
    steps, when asked for, need a device (or noise in every step).
    """
    if local_steps > 1:
        return "device" if unit is Unit.USER else "local-noise"
    return "gram" if d <= GRAM_LIMIT else "power"


def learn(federation: Federation, plan: Plan, settings: Settings, rank: int | None) -> Spectrum:
    """Learn ``rank`` components, or (None) as many as stand above the noise."""
    if settings.route == "gram":
        return _from_gram(federation, plan, settings, rank)
    if settings.route == "local-noise":
        return _from_noisy_local_steps(federation, plan, settings, rank)
    return _from_steps(federation, plan, settings, rank)


def _from_gram(federation: Federation, plan: Plan, settings: Settings, rank: int | None) -> Spectrum:
    d = federation.n_features
    centre, scale = _centre(federation, plan, settings)
    query = ShiftedGram(centre, _CONSTANT * scale, settings.unit)
    clip = _chosen_clip(federation, plan, query, "gram matrix", scale**2)
    event = plan.event("sum", clip=clip, acute=True)
    matrix = unpack_symmetric(federation.release(query, event, "gram matrix"), d + 1)
    sigma = federation.sum_sigma(event)

    missed = matrix[:-1, -1] / query.constant
    n_rows = _count(federation, settings, float(matrix[-1, -1]) / query.constant**2)
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
    return _spectrum(vectors[:, :rank].T, values, level, sigma / math.sqrt(2), mean, n_rows)


def _from_steps(federation: Federation, plan: Plan, settings: Settings, rank: int | None) -> Spectrum:
    d = federation.n_features
    width = _width(settings, rank, d)
    if settings.route == "power":
        centre, scale = _centre(federation, plan, settings)
    else:
        centre, scale = np.zeros(d), 1.0
    constant = _CONSTANT * scale
    basis = orthonormal(np.random.default_rng(settings.seed).normal(size=(d, width)))[0]
    product, noise, n_rows, mean = np.zeros((d, width)), 0.0, 0.0, np.zeros(d)

    def ask(basis: Array, steps: int) -> Query:
        if settings.route == "device":
            return DeviceStep(basis, steps, settings.alignment)
        return PowerStep(basis, centre, constant, settings.unit)

    def product_of(query: Query, released: Array) -> tuple[Array, float, Array]:
        if isinstance(query, DeviceStep):
            return released.reshape(d, width), float(federation.n_rows if settings.unit is Unit.ROW else 0), np.zeros(d)
        assert isinstance(query, PowerStep)
        moved, missed, seen = query.split(released)
        rows = _count(federation, settings, seen)
        if settings.centered:
            return moved - np.outer(missed, missed @ query.basis) / rows, rows, centre + missed / rows
        along = centre @ query.basis
        return moved + np.outer(missed, along) + np.outer(centre, missed @ query.basis + rows * along), rows, mean

    for number, steps in enumerate(settings.schedule):
        query = ask(basis, steps)
        name = f"step {number + 1}"
        clip = _chosen_clip(federation, plan, query, name, scale**2)
        event = plan.event("sum", clip=clip)
        noise = federation.sum_sigma(event)
        if settings.turns == 1:
            product, n_rows, mean = product_of(query, federation.release(query, event, name))
            basis = orthonormal(product)[0]
            continue
        start, first = basis, steps

        def after(released: list[Array], start: Array = start, steps: int = first) -> Query:
            """Ask the next group about the basis that the last one left."""
            here = start
            for vector in released:
                here = orthonormal(product_of(ask(here, steps), vector)[0])[0]
            return ask(here, steps)

        turns = list(federation.release_in_turns(after, settings.turns, event, name))
        product, n_rows, mean = product_of(after(turns[:-1]), turns[-1])
        basis = orthonormal(product)[0]
    # A turn is one of so many groups and a sample a share of all: public factors bring the sum to everybody's size.
    share = settings.sampling_rate / settings.turns
    return _from_product(product / share, noise / share, width, rank, mean, n_rows / share)


def _from_noisy_local_steps(federation: Federation, plan: Plan, settings: Settings, rank: int | None) -> Spectrum:
    """Every device steps on its own, with noise in every step; what it has is public, so it may be aligned with others."""
    d = federation.n_features
    width = _width(settings, rank, d)
    basis = orthonormal(np.random.default_rng(settings.seed).normal(size=(d, width)))[0]
    n, product, noise, number, zero = federation.n_users, np.zeros((d, width)), 0.0, 0, np.zeros(d)
    for steps in settings.schedule:
        local = [basis] * n
        for _ in range(steps):
            number += 1
            name = f"local step {number}"
            clip = _chosen_clip(federation, plan, PowerStep(basis, zero, 1e-6), name, 1.0)
            event = plan.event("sum", clip=clip)
            queries = [PowerStep(own, zero, 1e-6) for own in local]
            answers = federation.release_each(queries, event, name)
            noise = event.sigma * math.sqrt(n)
            products = [query.split(answer)[0] for query, answer in zip(queries, answers, strict=True)]
            before, local = local, [orthonormal(own)[0] for own in products]
        align: Callable[[Array, Array], Array] = ALIGNMENTS[settings.alignment]
        product = sum(
            (own @ align(old, before[0]) for own, old in zip(products, before, strict=True)), np.zeros((d, width))
        )
        basis = orthonormal(product)[0]
    return _from_product(product, noise, width, rank, zero, float(federation.n_rows))


def _centre(federation: Federation, plan: Plan, settings: Settings) -> tuple[Array, float]:
    """Return a public centre of everybody's rows and the scale of a row."""
    d = federation.n_features
    if settings.low is not None and settings.high is not None:
        origin = (settings.low + settings.high) / 2
        scale = float(np.linalg.norm(settings.high - settings.low)) / 2
    else:
        event = plan.event("scale", clip=1.0, acute=True)
        query = NormHistogram(ShiftedGram(np.zeros(d), 0.0, settings.unit))
        histogram = federation.release(query, event, "scale")
        # Matrices have the norm of a row squared (and of many rows together, where the unit is the user).
        origin, scale = np.zeros(d), math.sqrt(quantile_of(histogram, federation.sum_sigma(event), 0.5))
    if not settings._shifted:
        return np.zeros(d), scale
    event = plan.event("centre", clip=1.0)
    released = federation.release(CentreVote(origin, scale, settings.unit), event, "centre")
    sigma = federation.sum_sigma(event)
    if not released[-1] > 4 * sigma:
        return origin, scale
    moved = released[:-1] / released[-1]
    # Noise alone has this norm; what is not clearly longer is shrunk, so that a centre is never worse than none.
    excess = float(np.sum(released[:-1] ** 2)) - d * sigma**2
    share = max(0.0, excess / float(np.sum(released[:-1] ** 2))) if np.any(released[:-1]) else 0.0
    return origin + share * scale * moved, scale


def _chosen_clip(federation: Federation, plan: Plan, query: Query, name: str, fallback: float) -> float:
    """Release a histogram of the query's norms; return the clip with the least predicted harm."""
    event = plan.event("clip", clip=1.0, acute=True)
    histogram = federation.release(NormHistogram(query, _PER_OCTAVE), event, f"norms of {name}")
    unit = plan.event("sum", clip=1.0, acute=query.acute)
    width = math.sqrt(federation.n_features / 2)
    return best_clip(histogram, federation.sum_sigma(event), federation.sum_sigma(unit) * width, fallback)


def best_clip(histogram: Array, sigma: float, noise: float, fallback: float) -> float:
    """Return the clip C for which noise·C plus the harm of cutting norms off at C is least.

    >>> counts = np.zeros(1920); counts[960:964] = 1000  # norms from 1 to √2
    >>> round(best_clip(counts, 0.0, 0.0, 1.0), 2), round(best_clip(counts, 0.0, 100.0, 1.0), 2)
    (1.41, 1.09)
    """
    edges = bin_edges(_PER_OCTAVE)
    kept = np.where(histogram > 3.5 * sigma, histogram, 0.0)
    if not kept.any():
        return fallback
    if sigma > 0:
        width = 8 * _PER_OCTAVE
        first = int(np.argmax(np.convolve(kept, np.ones(width), mode="valid")))
        kept[:first], kept[first + width :] = 0.0, 0.0
    used = np.flatnonzero(kept)
    low = int(np.searchsorted(np.cumsum(kept), 0.25 * kept.sum()))
    candidates = edges[max(low, used[0]) + 1 : used[-1] + 2]
    lost = [float(np.sum(kept[used] * np.maximum(edges[used + 1] - c, 0.0))) for c in candidates]
    return float(candidates[int(np.argmin(noise * candidates + _HARM * np.array(lost)))])


def _count(federation: Federation, settings: Settings, seen: float) -> float:
    """Return the number of rows in the sum: public where the unit is the row and all answered, else as released."""
    everybody = settings.unit is Unit.ROW and settings.turns == 1 and seen > 0.8 * federation.n_rows
    return float(federation.n_rows) if everybody else max(seen, 1.0)


def _width(settings: Settings, rank: int | None, d: int) -> int:
    wanted = settings.iteration_rank or 2 * (rank or 10)
    return min(d, max(wanted, rank or 1))


def _from_product(product: Array, noise: float, width: int, rank: int | None, mean: Array, n_rows: float) -> Spectrum:
    """Read components and eigenvalues off the last noisy product of the matrix with an orthonormal basis."""
    d = len(product)
    left, values, _ = np.linalg.svd(product, full_matrices=False)
    level = noise * math.sqrt(d)
    if rank is None:
        rank = max(1, int(np.count_nonzero(values > 1.1 * noise * (math.sqrt(d) + math.sqrt(width)))))
    return _spectrum(left[:, :rank].T, values, level / 2, noise, mean, n_rows)


def _spectrum(components: Array, values: Array, level: float, entry: float, mean: Array, n_rows: float) -> Spectrum:
    """Subtract the known noise; say how sure each direction is and how far the space may be off."""
    k = len(components)
    # scikit-learn's signs: the largest entry of a component is positive.
    signs = np.sign(components[np.arange(k), np.argmax(np.abs(components), axis=1)])
    sizes = spike_size(values[:k], level) if level > 0 else np.maximum(values[:k], 0.0)
    with np.errstate(all="ignore"):
        confidence = np.where(sizes > 0, 1.0 - (level / sizes) ** 2, 0.0) if level > 0 else np.ones(k)
        gaps = values[k - 1] - values[k:]
        rest = entry * math.sqrt(float(np.sum(1.0 / gaps**2))) if len(gaps) else 0.0
    return Spectrum(
        components * np.where(signs == 0, 1.0, signs)[:, None],
        sizes,
        np.maximum(confidence, 0.0),
        mean,
        2 * level,
        n_rows,
        min(1.0, rest) if np.isfinite(rest) else 1.0,
    )
