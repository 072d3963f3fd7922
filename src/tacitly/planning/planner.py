"""Plan: simulate every method that fits a shape, and summarise what to expect."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from tacitly.arrays import Array
from tacitly.baselines.comparison import SINGLE
from tacitly.data.cohort import Cohort
from tacitly.data.reading import read_cohort
from tacitly.data.schema import Schema
from tacitly.heads.losses import Loss
from tacitly.methods import REGISTRY
from tacitly.planning.components import Components
from tacitly.planning.curve import NOTHING, Curve, Point, simulated
from tacitly.planning.made_up import Described, Population
from tacitly.planning.result import EQUAL, Line, Plan, gains
from tacitly.planning.sample import Sampled
from tacitly.planning.sample_losses import SampledLoss
from tacitly.planning.shape import Shape
from tacitly.planning.simulation import ALONE, OnStep, Simulation, simulated_users
from tacitly.privacy.certificate import Certificate
from tacitly.privacy.guarantee import Adjacency, GaussianEvent, check_target

EPSILONS = (0.1, 0.3, 1.0, 3.0, 10.0)
MULTIPLES = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Numbers of users that are reported, as multiples of the number asked for."""

CERTAIN, LIKELY, CLOSE = 0.06, 0.5, 0.2
FOR_NOTHING, MOST_BLOCKS = 8, 16
"""A mean share above LIKELY by two standard errors is accepted if its standard error is below CERTAIN. A smaller share
is accepted if its standard error is below CLOSE times the share, or if FOR_NOTHING blocks of repetitions gave nothing.
"""


def plan(
    *,
    users: int,
    rows: int | tuple[int, int] | None = None,
    features: int | None = None,
    noise: float | None = None,
    levels: float | None = None,
    slopes: float | None = None,
    directions: int | None = None,
    between: float | None = None,
    target: bool = True,
    loss: str = "squared",
    classes: int | Sequence[Any] | None = None,
    mean_count: float | None = None,
    schema: Schema | Mapping[str, Mapping[str, Any]] | None = None,
    sample: Any = None,
    epsilons: Sequence[float] = EPSILONS,
    delta: float = 1e-6,
    adjacency: str = "zero-out",
    methods: Iterable[str] | None = None,
    goal: float = 0.9,
    repeats: int = 3,
    random_state: int = 0,
    on_step: OnStep | None = None,
) -> Plan:
    """Predict what an ε and a number of users achieve, before any private data are read.

    Synthetic users are drawn from public numbers, and every suitable method is fitted to them, with the noise that its
    own plan would add. No private cell is read: give a description, a public schema, or a public sample.

    Parameters
    ----------
    users
        Number of users.
    rows, features, noise, levels, slopes, directions, between
        The rest of the shape, see :class:`~tacitly.planning.shape.Shape`: rows per user, numeric columns, and shares of
        the target's variance. Values that are not given come from the schema or the sample, or are typical values.
    target
        False for rows without a target, whose shared components are estimated (``tacitly svd``); then ``noise`` is
        the share of variance outside of them, and ``directions`` their number.
    loss, classes, mean_count
        ``"squared"`` for a number to predict, ``"logistic"`` for a class (``classes`` is their number, or the labels of
        a sample), ``"poisson"`` for a count (``mean_count`` is the mean of counts). Shares of variance are then those
        of the latent number that determines it, see :mod:`tacitly.planning.targets`.
    schema
        Public facts about the columns, as for :class:`~tacitly.MixedEffects`; it also determines their number.
    sample
        Public (or synthetic) users: a :class:`~tacitly.Cohort` or (X, y, users). Features are drawn from it, and the
        shares of variance are estimated on it.
    epsilons, delta, adjacency
        The guarantees to simulate.
    methods
        Names of methods (those of ``tacitly fit --method``); None for all suitable methods.
    goal
        The share of what is possible that counts as "enough users".
    repeats
        Number of repetitions of the simulation.
    random_state
        Seed of the simulation: the same seed gives the same plan.
    on_step
        Called with a short text after every fit (for progress bars).

    Examples
    --------
    >>> import tacitly
    >>> found = tacitly.plan(users=400, rows=6, features=2, epsilons=(0.1, 10), methods=["mixed-effects"], repeats=1)
    >>> found.recommended, found.line(10).share > found.line(0.1).share
    ('mixed-effects', True)
    >>> sorted(found.table()[0])
    ['epsilon', 'error', 'high', 'low', 'method', 'share', 'users']
    """
    _check(epsilons, delta, adjacency, goal, repeats)
    given = {
        "rows": rows,
        "features": features,
        "noise": noise,
        "levels": levels,
        "slopes": slopes,
        "directions": directions,
        "between": between,
        "mean_count": mean_count,
    }
    known = {name: value for name, value in given.items() if value is not None}
    meaning = _loss(loss, classes)
    if target:
        population, source = _population(users, known, meaning, schema, sample, random_state)
    else:
        population, source = _components(users, known, schema, sample)
    fitting, left_out = _fitting(population.shape, methods)
    simulation = Simulation(
        population=population,
        n_users=simulated_users(users, population.shape.features),
        repeats=repeats,
        delta=delta,
        adjacency=adjacency,
        random_state=random_state,
        on_step=on_step,
    )
    return _planned(simulation, fitting, left_out, sorted(epsilons), goal, source)


def _planned(
    simulation: Simulation,
    fitting: Mapping[str, Mapping[str, Any]],
    left_out: Mapping[str, str],
    epsilons: Sequence[float],
    goal: float,
    source: str,
) -> Plan:
    shape, others = simulation.population.shape, simulation.others()
    nearest = min((name for name in ALONE if name in others), key=lambda name: float(others[name].mean()))
    without = {name: simulation.errors(REGISTRY[name], given, math.inf).mean() for name, given in fitting.items()}
    best = min(without, key=lambda name: float(without[name]))
    error, possible = float(others[nearest].mean()), float(without[best])

    def gained(name: str, level: float, block: int) -> tuple[Array, Array]:
        """Return the gains of a block's fits, and the possible gains."""
        alone = simulation.others(block)[nearest]
        most = alone - simulation.errors(REGISTRY[best], fitting[best], math.inf, block)
        errors = simulation.errors(REGISTRY[name], fitting[name], level, block)
        return np.maximum(alone - errors, 0.0), np.maximum(most, 0.25 * max(error - possible, 1e-12))

    def point(name: str, level: float) -> Point:
        had, most = gained(name, level, 0)
        while math.isfinite(level) and not _believed(had, most, simulation.repeats):
            more = gained(name, level, len(had) // simulation.repeats)
            had, most = np.append(had, more[0]), np.append(most, more[1])
        # By chance, noise can improve a fit to few synthetic users; shares are limited to 1.
        mean, low, high = float(had.mean() / most.mean()), float((had / most).min()), float((had / most).max())
        return Point(min(mean, 1.0), min(low, 1.0), min(high, 1.0))

    levels = [simulation.level(epsilon, shape.users) for epsilon in epsilons]
    curves = {name: simulated(partial(point, name), levels, point(name, math.inf).mean, goal) for name in fitting}
    lines = [
        _line(name, epsilon, users, curve.at(simulation.level(epsilon, users)), error, possible)
        for name, curve in curves.items()
        for users in _numbers(shape.users)
        for epsilon in epsilons
    ]
    return Plan(
        shape=shape,
        source=source,
        delta=simulation.delta,
        adjacency=simulation.adjacency,
        goal=goal,
        lines=tuple(lines),
        needed={name: {e: _needed(simulation, curve, e, goal) for e in epsilons} for name, curve in curves.items()},
        alone=error,
        pooled=float(others[SINGLE].mean()),
        possible=possible,
        recommended=_recommended(lines, shape.users, goal) if gains(error, possible) else None,
        splits={name: _split(simulation, name) for name in fitting},
        left_out=left_out,
        simulated_users=simulation.n_users,
        repeats=simulation.repeats,
    )


def _believed(had: Array, most: Array, repeats: int) -> bool:
    """Whether a mean share needs no more repetitions."""
    mean, blocks = float(had.mean() / most.mean()), len(had) // repeats
    spread = float((had - mean * most).std() / most.mean()) / math.sqrt(len(had))
    if blocks >= MOST_BLOCKS:
        return True
    if mean <= NOTHING:
        return blocks >= FOR_NOTHING
    return spread < CERTAIN and mean - 2.0 * spread > LIKELY if mean > LIKELY else spread < CLOSE * mean


def _line(
    method: str, epsilon: float, users: int, found: tuple[float, float, float], alone: float, possible: float
) -> Line:
    share, low, high = found
    error = alone - share * (alone - possible)
    return Line(method=method, epsilon=epsilon, users=users, share=share, low=low, high=high, error=error)


def _population(
    users: int, known: Mapping[str, Any], loss: Loss, schema: Any, sample: Any, random_state: int
) -> tuple[Population, str]:
    """Return where made-up users come from, and in one word why."""
    if sample is not None:
        if known or schema is not None:
            raise ValueError(f"a sample determines the shape. Give no {' and no '.join(known or ['schema'])} with it.")
        cohort = sample if isinstance(sample, Cohort) else read_cohort(*sample)
        if loss.name == "squared":
            return Sampled.of(cohort, users, random_state), "sample"
        return SampledLoss.of(cohort, users, loss, REGISTRY.default("fit"), random_state), "sample"
    meaning: dict[str, Any] = {"loss": loss.name, **({} if loss.classes is None else {"classes": len(loss.classes)})}
    if schema is not None:
        declared = schema if isinstance(schema, Schema) else Schema.declared(schema)
        if "features" in known:
            raise ValueError("features follow from the schema. Give one of the two.")
        sizes = {**known, **meaning, "features": len(declared.feature_names)}
        _check_sizes(sizes)
        return Described(Shape(users=users, **sizes), declared), "schema"
    _check_sizes(known)
    return Described(Shape(users=users, **known, **meaning)), "described"


def _loss(name: str, classes: int | Sequence[Any] | None) -> Loss:
    """Return the loss of the target; classes are labels, or their number."""
    if name not in ("squared", "logistic", "poisson"):
        raise ValueError(f"loss must be 'squared', 'logistic' or 'poisson'. Found {name!r}.")
    if classes is not None and name != "logistic":
        raise ValueError(f"classes are for loss 'logistic'. Found loss {name!r}.")
    return Loss(name, range(classes) if isinstance(classes, int) else classes)


def _components(users: int, known: Mapping[str, Any], schema: Any, sample: Any) -> tuple[Population, str]:
    """Return users without a target."""
    if schema is not None or sample is not None or {"levels", "slopes"} & set(known):
        raise ValueError("rows without a target are described by rows, features, noise, directions and between only.")
    _check_sizes(known)
    usual = {"directions": min(2, int(known["features"]))}
    return Components(Shape(users=users, levels=0.0, slopes=0.0, target=False, **{**usual, **known})), "described"


def _check_sizes(known: Mapping[str, Any]) -> None:
    missing = [name for name in ("rows", "features") if name not in known]
    if missing:
        raise ValueError(
            "a plan needs the numbers of users, of rows per user and of features, or a sample. "
            f"Found no {' and no '.join(missing)}."
        )


def _fitting(shape: Shape, methods: Iterable[str] | None) -> tuple[dict[str, Mapping[str, Any]], dict[str, str]]:
    """Return suitable methods with the parameters to simulate, and the other methods with the reason."""
    asked = None if methods is None else list(methods)
    for name in asked or ():
        if name not in REGISTRY:
            raise ValueError(f"there is no method {name!r}. Found: {', '.join(REGISTRY)}.")
    fitting: dict[str, Mapping[str, Any]] = {}
    left_out = {}
    for method in REGISTRY.values():
        answer = method.simulated(shape.to_dict())
        if asked is not None and method.name not in asked:
            continue
        if isinstance(answer, str):
            left_out[method.name] = answer
        else:
            fitting[method.name] = answer
    if not fitting:
        raise ValueError(f"no method fits. {'; '.join(f'{name}: {why}' for name, why in left_out.items())}.")
    return fitting, left_out


def _recommended(lines: Sequence[Line], users: int, goal: float) -> str:
    """Return the method with the largest share at the smallest ε for which some method reaches the goal.

    A default method (:attr:`Method.default`) is preferred if another is only slightly better, because it accepts any
    table.
    """
    asked = [line for line in lines if line.users == users]
    enough = min((line.epsilon for line in asked if line.share >= goal), default=max(line.epsilon for line in asked))
    shares = {line.method: line.share for line in asked if line.epsilon == enough}
    best = max(shares, key=lambda name: shares[name])
    close = [name for name, share in shares.items() if share > shares[best] - EQUAL and REGISTRY[name].default]
    return close[0] if close else best


def _needed(simulation: Simulation, curve: Curve, epsilon: float, goal: float) -> int | None:
    level = curve.needed(goal)
    if level is None:
        return None
    # Far fewer users than were simulated cannot be predicted, because the sampling of so few users was not simulated.
    return _rounded_up(max(level / simulation.level(epsilon, 1), simulation.n_users / 4.0))


def _split(simulation: Simulation, method: str) -> dict[str, float]:
    """Return the share of μ² that each kind of release takes, from the certificate of a simulated run."""
    runs = [c for (name, level), c in simulation.certificates.items() if name == method and math.isfinite(level)]
    return split_of(runs[0])


def split_of(certificate: Certificate) -> dict[str, float]:
    """Return the share of the budget (of μ²) of each kind of release; numbers at the end of names are dropped."""
    found: dict[str, float] = {}
    for release in certificate.releases:
        if isinstance(release.event, GaussianEvent):  # a selection has its own ε and no share of μ²
            moved = release.event.sensitivity.under(certificate.adjacency)
            name = re.sub(r"[\s\d.]+$", "", release.name)
            found[name] = found.get(name, 0.0) + (moved / release.event.sigma) ** 2
    total = sum(found.values())
    return {name: cost / total for name, cost in found.items()}


def _numbers(users: int) -> list[int]:
    return sorted({users if factor == 1.0 else _rounded_up(users * factor) for factor in MULTIPLES})


def _rounded_up(value: float) -> int:
    """Round up to two digits.

    >>> _rounded_up(8731.2), _rounded_up(37.0)
    (8800, 37)
    """
    unit = 10 ** max(math.floor(math.log10(value)) - 1, 0) if value > 0 else 1
    return int(math.ceil(value / unit - 1e-9) * unit)


def _check(epsilons: Sequence[float], delta: float, adjacency: str, goal: float, repeats: int) -> None:
    if not epsilons:
        raise ValueError("epsilons must name at least one ε. Found none.")
    for epsilon in epsilons:
        if not 0 < epsilon < math.inf:
            raise ValueError(f"every ε must be a positive number. Found {epsilon!r}.")
        check_target(epsilon, delta)
    Adjacency(adjacency)
    if not 0 < goal < 1:
        raise ValueError(f"goal is a share of what is possible, between 0 and 1. Found {goal!r}.")
    if repeats < 1:
        raise ValueError(f"repeats must be at least 1. Found {repeats!r}.")
