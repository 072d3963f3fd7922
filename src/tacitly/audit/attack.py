"""Attack an estimator: run it many times on two neighbouring cohorts and try to tell them apart.

The attacker knows the rows of all ordinary users, both versions of the canary, every query (queries are public) and
every released value. Given the queries, the exact sums in both worlds are known. So the best test on one released value
R is its likelihood ratio, ⟨R − S_out, S_in − S_out⟩/σ² up to a constant, and on a whole run the sum of these: an
adaptive attack over all releases. A selection among candidates is treated in the same way, by the ratio of the chosen
candidate's probabilities (of the exponential mechanism, which are close to those of permute-and-flip). Two more
statistics look for noise whose *size* depends on the data: the energy of R − S_out, and its largest entry.

The attack is preceded by exact checks (:mod:`tacitly.audit.findings`) and by the search for the canary that is easiest
to detect (:mod:`tacitly.audit.search`).
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from scipy.special import log_softmax

from tacitly.arrays import Array
from tacitly.audit.recording import Entry, RecordedRun, Recording
from tacitly.audit.worlds import Worlds, canaries, worlds
from tacitly.data.cohort import Cohort
from tacitly.federation.base import Chosen, Query
from tacitly.federation.bounds import BoundExceeded
from tacitly.federation.local import LocalFederation
from tacitly.federation.scores import Scores
from tacitly.federation.shard import one_blas_thread
from tacitly.methods.base import PrivateModel
from tacitly.privacy.accounting import compose, mu_of
from tacitly.privacy.certificate import Certificate
from tacitly.privacy.guarantee import (
    Adjacency,
    GaussianEvent,
    SelectionEvent,
    Sensitivity,
    TooFewUsersWarning,
    UncertifiedWarning,
    Unit,
)

STATISTICS = ("likelihood ratio", "energy", "largest", "seconds")
_FAILED, _CERTAIN = 1e300, 1e6
_OFTEN = 0.1  # share of runs


@dataclass(frozen=True)
class Power:
    """Power of the canary: μ = √Σ‖S_in − S_out‖²/σ² over sums, and the log-odds of each selection.

    ``pure`` is the largest log-odds, which the claim must cover; ``often`` is the log-odds that at least one run in ten
    reaches. Large odds of candidates that are almost never chosen prove nothing.
    """

    mu: float = 0.0
    pure: tuple[float, ...] = ()
    often: tuple[float, ...] = ()

    @property
    def size(self) -> float:
        """One number for comparing canaries."""
        return math.hypot(self.mu, *self.often)

    def share(self, claimed: float, delta: float) -> float:
        """Return the canary's power as a fraction of the claim: of μ, or of ε if there are selections."""
        if math.isinf(claimed):
            return 0.0
        if math.isinf(self.mu):
            return math.inf
        if not self.pure:
            return self.mu / mu_of(claimed, delta)
        unit = Sensitivity.of_clip(1.0)
        sums = [GaussianEvent(sigma=1.0 / self.mu, sensitivity=unit)] if self.mu > 0 else []
        choices = [SelectionEvent(scale=1.0 / epsilon) for epsilon in self.pure if epsilon > 0]
        return compose([*sums, *choices], Adjacency.ZERO_OUT, delta) / claimed


class Attacker:
    """Runs one estimator in two worlds and computes attack statistics from its releases."""

    def __init__(self, estimator: PrivateModel, pair: Worlds) -> None:
        self.estimator, self.worlds = _numbered(estimator), pair
        # The attacker's own federations compute the exact sums; nothing is released through them.
        trust = getattr(estimator, "trust", "central")
        self._sums = [_sums(self.estimator.as_asked(cohort), trust) for cohort in (pair.inside, pair.outside)]
        self._alone = [
            _sums(self.estimator.as_asked(_last_user(cohort)), trust) for cohort in (pair.inside, pair.outside)
        ]
        self._projected: dict[tuple[bool, bytes], list[LocalFederation]] = {}
        self._moved: WeakKeyDictionary[Entry, tuple[Array, Array]] = WeakKeyDictionary()

    def run(self, cohort: Cohort, answers: Sequence[Array] | None = None) -> tuple[PrivateModel, list[Entry]]:
        """Fit on a cohort; return the model and its releases."""
        recording = Recording(answers)
        model = prepared(self.estimator, recording)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UncertifiedWarning)
            warnings.simplefilter("ignore", TooFewUsersWarning)
            model.fit(cohort)
        return model, list(recording.entries)

    def read(self, entries: Sequence[Entry], alone: bool = False) -> tuple[Array, Power]:
        """Return the statistics of one run, and the canary's power in it (``alone``: the power only)."""
        ratio = energy = largest = power = 0.0
        pure, often = [], []
        for entry in entries:
            event = entry.event
            inside, outside = self._moves(entry) if alone else self.known(entry)
            if not event.private:
                seen = _without_noise(entry.value.ravel(), inside, outside)
                ratio, power = ratio + seen, power + (math.inf if seen else 0.0)
                continue
            if isinstance(event, SelectionEvent):
                without = log_odds(entry, outside)
                odds = log_odds(entry, inside) - without
                ratio += float(odds[int(entry.value[0])])
                pure.append(float(np.abs(odds).max()))
                often.append(_seen_often(np.abs(odds), np.exp(without)))
                continue
            sigma = self.sigma(entry)
            shift, rest = (inside - outside) / sigma, (entry.value.ravel() - event.sampling_rate * outside) / sigma
            ratio += float(rest @ shift - shift @ shift / 2)
            energy += float(rest @ rest)
            largest = max(largest, float(np.abs(rest).max()))
            power += float(shift @ shift)
        return np.array([ratio, energy, largest]), Power(math.sqrt(power), tuple(pure), tuple(often))

    def power(self) -> Power:
        """Return the canary's power in one run that includes it."""
        return self.read(self.run(self.worlds.inside)[1])[1]

    def screen(self, entries: Sequence[Entry]) -> Power:
        """Return the power that the canary would have in a run with these releases; zero if computing it fails."""
        try:
            return self.read(entries, alone=True)[1]
        except Exception:
            return Power()

    def excesses(self, entries: Sequence[Entry], adjacency: Adjacency) -> Iterator[str]:
        """Yield releases whose sum the canary would move by more than its sensitivity."""
        for entry in entries:
            if not (entry.event.private and _by_fields(entry) and np.isfinite(entry.value).all()):
                continue
            try:
                inside, outside = self._moves(entry)
            except BoundExceeded:
                yield f"{entry.release.name}: a canary alone moves the sum by more than its sensitivity"
                continue
            except Exception:
                continue  # a run with it would fail too, and other checks report that
            moved, allowed = float(np.linalg.norm(inside - outside)), entry.event.sensitivity.under(adjacency)
            if moved > allowed:
                yield f"{entry.release.name}: a canary moves the sum by {moved / allowed:.4g} times its sensitivity"

    def known(self, entry: Entry, alone: bool = False) -> tuple[Array, Array]:
        """Return the exact sums in the two worlds; those of several groups are concatenated.

        Losses of a selection are counted in integer steps. With ``alone``, sums are of the last user only, if that is
        sufficient to compute how far the canary moves the sum.
        """
        inside, outside = (_sum_of(door, entry) for door in self._doors(entry, alone and _by_fields(entry)))
        return inside, outside

    def _moves(self, entry: Entry) -> tuple[Array, Array]:
        """Return :meth:`known` of the canary alone, cached with the entry, because screening needs it twice."""
        if entry not in self._moved:
            self._moved[entry] = self.known(entry, alone=True)
        return self._moved[entry]

    def without(self, entry: Entry) -> Array:
        """Return the exact sum in the world without the canary."""
        return _sum_of(self._doors(entry, alone=False)[1], entry)

    def _doors(self, entry: Entry, alone: bool) -> list[LocalFederation]:
        """Return the federations of both worlds with the rows that the queries saw, projected if they were."""
        doors = self._alone if alone else self._sums
        if entry.through is None:
            return doors
        key = alone, entry.through.tobytes()
        if key not in self._projected:
            self._projected[key] = [door.projected(entry.through) for door in doors]
        return self._projected[key]

    def sigma(self, entry: Entry) -> Array:
        """Return the standard deviation that each coordinate should have, whoever adds the noise."""
        door, event = self._sums[0], entry.event
        if not isinstance(event, GaussianEvent):
            raise TypeError(f"only sums have a noise standard deviation. Found {type(event).__name__}.")
        noise = [
            np.full(query.coordinates, door.sum_sigma(event, None if group is None else int(np.count_nonzero(group))))
            for query, group in _parts(door, entry)
        ]
        return np.concatenate(noise)

    def sample(self, inside: bool, runs: int) -> Array:
        """Return the statistics of ``runs`` runs in one world, one row per run; the last column is the running time."""
        cohort = self.worlds.inside if inside else self.worlds.outside
        rows = []
        with one_blas_thread():
            for _ in range(runs):
                began = time.perf_counter()
                try:
                    statistics = self.read(self.run(cohort)[1])[0]
                except Exception:  # an error is treated as an output
                    statistics = np.full(len(STATISTICS) - 1, _FAILED)
                rows.append(np.append(statistics, time.perf_counter() - began))
        return np.array(rows)


def _without_noise(value: Array, inside: Array, outside: Array) -> float:
    """Return the log-likelihood ratio of a sum without noise, limited where it is practically infinite."""
    shift = inside - outside
    length = float(shift @ shift)
    return 0.0 if length == 0.0 else _CERTAIN * float((value - outside) @ shift / length - 0.5)


def _seen_often(odds: Array, chances: Array) -> float:
    """Return the largest log-odds that at least a share ``_OFTEN`` of runs reaches."""
    order = np.argsort(-odds)
    return float(odds[order[int(np.searchsorted(np.cumsum(chances[order]), _OFTEN))]])


def log_odds(entry: Entry, totals: Array) -> Array:
    """Return the log-probability of every candidate, given the total losses in integer steps."""
    query, event = entry.queries[0], entry.event
    if not (isinstance(query, Scores) and isinstance(event, SelectionEvent)):
        raise TypeError(f"a selection needs Scores. Found {type(query).__name__} with {type(event).__name__}.")
    return np.asarray(log_softmax(-totals / (event.scale * query.steps)))


def prepared(estimator: PrivateModel, recording: Recording) -> PrivateModel:
    """Return a copy of the estimator that records its releases, set up for many short runs."""
    parameters = estimator.get_params(deep=False)
    changes: dict[str, Any] = {"ledger": recording, "threads": 1, "noise": "float"}
    if parameters.get("random_state", 0) is None:
        changes["random_state"] = 0  # public randomness must be the same in both worlds
    copy: PrivateModel = type(estimator)(**{**parameters, **{k: v for k, v in changes.items() if k in parameters}})
    return copy


def first_certificate(estimator: PrivateModel) -> Certificate:
    """Fit once and return the certificate: unit, adjacency, claimed ε."""
    labels = estimator.audit_labels
    canary = next(canaries(labels=labels))
    pair = worlds(Unit.USER, Adjacency.ZERO_OUT, canary, labels=labels)
    return Attacker(estimator, pair).run(pair.inside)[0].certificate_


def many_runs(
    attacker: Attacker, runs: int, *, workers: int = 1, progress: Callable[[int], None] | None = None
) -> tuple[Array, Array]:
    """Return the statistics of ``runs`` runs in each world."""
    size = max(1, min(250, runs // (2 * workers)))
    sizes = [size] * (runs // size) + ([runs % size] if runs % size else [])
    jobs = [(inside, count) for inside in (True, False) for count in sizes]
    results: dict[bool, list[Array]] = {True: [], False: []}

    def keep(job: tuple[bool, int], result: Array) -> None:
        results[job[0]].append(result)
        if progress is not None:
            progress(job[1])

    if workers == 1:
        for job in jobs:
            keep(job, attacker.sample(*job))
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # forking is safe here: no other thread is running
            with ProcessPoolExecutor(workers, mp_context=get_context("fork")) as pool:
                futures = [pool.submit(_sample, attacker.estimator, attacker.worlds, *job) for job in jobs]
                for job, future in zip(jobs, futures, strict=True):
                    keep(job, future.result())
    return np.concatenate(results[True]), np.concatenate(results[False])


def _sample(estimator: PrivateModel, pair: Worlds, inside: bool, runs: int) -> Array:
    """Draw samples in a worker process, with its own federations."""
    return Attacker(estimator, pair).sample(inside, runs)


def _sums(cohort: Cohort, trust: str) -> LocalFederation:
    return LocalFederation(cohort, RecordedRun(Recording(), "known", {}), threads=1, trust=trust)  # type: ignore[arg-type]


def _last_user(cohort: Cohort) -> Cohort:
    """Return a cohort of the canary's user alone."""
    first = int(cohort.offsets[-2])
    y = None if cohort.y is None else cohort.y[first:]
    return replace(cohort, X=cohort.X[first:], y=y, offsets=cohort.offsets[-2:] - first, users=cohort.users[-1:])


def _by_fields(entry: Entry) -> bool:
    """Whether a contribution depends only on the query's fields and the user's rows, and all users are summed.

    This holds except for networks, whose queries may keep local state, and for selections, whose odds depend on totals.
    """
    query = entry.queries[0]
    at_home = any(kind.__module__.startswith("tacitly.neural") for kind in type(query).__mro__)
    return len(entry.queries) == 1 and not at_home and not isinstance(query, Scores)


def _sum_of(door: LocalFederation, entry: Entry) -> Array:
    """Return the exact sum over the users of a federation; losses of a selection are counted in integer steps."""
    bound, grid = entry.event.sensitivity.zero_out, entry.release.grid or 2.0**-40
    if isinstance(entry.queries[0], Scores):
        bound, grid = math.inf, 1.0
    sums = [door._exact_sum(query, bound, grid, group) for query, group in _parts(door, entry)]
    return np.concatenate(sums).astype(np.float64) * grid


def _parts(door: LocalFederation, entry: Entry) -> list[tuple[Query, Chosen | None]]:
    """Return each query of a release with the group of users that answered it; None for all users."""
    asked = entry.queries
    if len(asked) == 1:
        return [(asked[0], None)]
    return [(query, door.group_of(len(asked), turn)) for turn, query in enumerate(asked)]


def _numbered(estimator: PrivateModel) -> PrivateModel:
    """Return the estimator with class names replaced by numbers, because a cohort contains numbers."""
    classes = getattr(estimator, "classes", None)
    if classes is None or not isinstance(classes[0], str):
        return estimator
    parameters = {**estimator.get_params(deep=False), "classes": list(range(len(classes)))}
    numbered: PrivateModel = type(estimator)(**parameters)
    return numbered
