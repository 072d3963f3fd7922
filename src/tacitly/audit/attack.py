"""Attack an estimator: run it many times on two neighbouring cohorts and try to tell them apart.

The attacker knows the rows of all ordinary users, both versions of the canary, every query (queries are public) and
every released value. Given the queries, the exact sums in both worlds are known, so the best test on one released value
R is its likelihood ratio, ⟨R − S_out, S_in − S_out⟩/σ² up to a constant, and on a whole run the sum of these: an
adaptive attack over all releases. A selection among candidates is treated the same way, by the ratio of the chosen
candidate's probabilities (of the exponential mechanism, which are close to those of permute-and-flip). Two more
statistics look for noise whose *size* depends on the data: the energy of R − S_out, and its largest entry.

Before that come exact checks along a forced transcript: with the same released values in both worlds, everything else
must be identical too: the queries, the noise, the schedule, and every public array of the result.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, fields, is_dataclass, replace
from multiprocessing import get_context
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from scipy.special import log_softmax
from scipy.stats import chi2

from tacitly.arrays import Array
from tacitly.audit.recording import Entry, RecordedRun, Recording
from tacitly.audit.users import User
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
_FALSE_ALARM = 1e-9
_FAILED, _CERTAIN = 1e300, 1e6
_OFTEN = 0.1  # of runs
_CLOSE = 0.97  # of the largest power counts as much
_FINALISTS, _REPEATS = 3, 3  # canaries of each kind that are tried in runs of their own, and how often again


@dataclass(frozen=True)
class Power:
    """Power of the canary: μ = √Σ‖S_in − S_out‖²/σ² over sums, and the log-odds of each selection.

    ``pure`` has the largest log-odds, which the claim must cover, ``often`` those that one run in ten shows at least:
    odds that are large for candidates that are hardly ever chosen prove nothing.
    """

    mu: float = 0.0
    pure: tuple[float, ...] = ()
    often: tuple[float, ...] = ()

    @property
    def size(self) -> float:
        """One number to compare canaries by."""
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
        # The attacker's own federations compute the exact sums it knows; nothing is released through them.
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
        """Return the canary's power in a run with it."""
        return self.read(self.run(self.worlds.inside)[1])[1]

    def screen(self, entries: Sequence[Entry]) -> Power:
        """Return the power that the canary would have in a run with these releases; zero if that fails."""
        try:
            return self.read(entries, alone=True)[1]
        except Exception:
            return Power()

    def excesses(self, entries: Sequence[Entry], adjacency: Adjacency) -> Iterator[str]:
        """Yield where the canary would move the sum of a run with these releases by more than its sensitivity."""
        for entry in entries:
            if not (entry.event.private and _by_fields(entry) and np.isfinite(entry.value).all()):
                continue
            try:
                inside, outside = self._moves(entry)
            except BoundExceeded:
                yield f"{entry.release.name}: a canary alone moves the sum by more than its sensitivity"
                continue
            except Exception:
                continue  # its own run would fail, which other checks report
            moved, allowed = float(np.linalg.norm(inside - outside)), entry.event.sensitivity.under(adjacency)
            if moved > allowed:
                yield f"{entry.release.name}: a canary moves the sum by {moved / allowed:.4g} times its sensitivity"

    def known(self, entry: Entry, alone: bool = False) -> tuple[Array, Array]:
        """Return the exact sums in the two worlds; those of several groups are concatenated.

        Losses of a selection are counted in integer steps. ``alone``: of the last user only, where that is enough to
        tell how far the canary moves the sum.
        """
        inside, outside = (_sum_of(door, entry) for door in self._doors(entry, alone and _by_fields(entry)))
        return inside, outside

    def _moves(self, entry: Entry) -> tuple[Array, Array]:
        """Return :meth:`known` of the canary alone, remembered for as long as the entry: screening asks twice."""
        if entry not in self._moved:
            self._moved[entry] = self.known(entry, alone=True)
        return self._moved[entry]

    def without(self, entry: Entry) -> Array:
        """Return the exact sum in the world without the canary."""
        return _sum_of(self._doors(entry, alone=False)[1], entry)

    def _doors(self, entry: Entry, alone: bool) -> list[LocalFederation]:
        """Return the federations of both worlds with the rows that the queries saw, projected if theirs were."""
        doors = self._alone if alone else self._sums
        if entry.through is None:
            return doors
        key = alone, entry.through.tobytes()
        if key not in self._projected:
            self._projected[key] = [door.projected(entry.through) for door in doors]
        return self._projected[key]

    def sigma(self, entry: Entry) -> Array:
        """Return the standard deviation each coordinate should have, whoever adds the noise."""
        door, event = self._sums[0], entry.event
        if not isinstance(event, GaussianEvent):
            raise TypeError(f"only sums have a noise standard deviation. Found {type(event).__name__}.")
        noise = [
            np.full(query.coordinates, door.sum_sigma(event, None if group is None else int(np.count_nonzero(group))))
            for query, group in _parts(door, entry)
        ]
        return np.concatenate(noise)

    def sample(self, inside: bool, runs: int) -> Array:
        """Return the statistics of ``runs`` runs in one world, one row per run; the last column is its duration."""
        cohort = self.worlds.inside if inside else self.worlds.outside
        rows = []
        with one_blas_thread():
            for _ in range(runs):
                began = time.perf_counter()
                try:
                    statistics = self.read(self.run(cohort)[1])[0]
                except Exception:  # an error is an output like any other
                    statistics = np.full(len(STATISTICS) - 1, _FAILED)
                rows.append(np.append(statistics, time.perf_counter() - began))
        return np.array(rows)


def _without_noise(value: Array, inside: Array, outside: Array) -> float:
    """Return the log-likelihood ratio of a sum without noise, cut off where it is as good as infinite."""
    shift = inside - outside
    length = float(shift @ shift)
    return 0.0 if length == 0.0 else _CERTAIN * float((value - outside) @ shift / length - 0.5)


def _seen_often(odds: Array, chances: Array) -> float:
    """Return the largest log-odds that a share of at least ``_OFTEN`` of runs reaches."""
    order = np.argsort(-odds)
    return float(odds[order[int(np.searchsorted(np.cumsum(chances[order]), _OFTEN))]])


def log_odds(entry: Entry, totals: Array) -> Array:
    """Return the log-probability of every candidate, given the total losses in integer steps."""
    query, event = entry.queries[0], entry.event
    if not (isinstance(query, Scores) and isinstance(event, SelectionEvent)):
        raise TypeError(f"a selection needs Scores. Found {type(query).__name__} with {type(event).__name__}.")
    return np.asarray(log_softmax(-totals / (event.scale * query.steps)))


def prepared(estimator: PrivateModel, recording: Recording) -> PrivateModel:
    """Return a copy of the estimator that records its releases, with settings for many short runs."""
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


class Search(NamedTuple):
    """The attacker with the strongest canary, its power (typical, and the largest in any run), and what was found."""

    attacker: Attacker
    typical: Power
    most: Power
    findings: tuple[str, ...] = ()


def strongest(estimator: PrivateModel, unit: Unit, adjacency: Adjacency) -> Search:
    """Try all canaries.

    What a canary adds to the queries of a run hardly depends on which canary of its size and number of rows the run
    had, since the noise of so few users drowns everybody. So those are screened by the queries of one run, in which
    none of them may move a sum by more than its sensitivity. The best get runs of their own: the most powerful, and
    those with the largest values among the nearly as powerful; several, because a clip found privately is noisy: a
    canary may reach it in one run and not in the next.
    """
    labels = estimator.audit_labels
    everybody = list(_distinct(canaries(labels=labels), adjacency))
    attackers = [Attacker(estimator, worlds(unit, adjacency, canary, labels=labels)) for canary in everybody]
    transcripts: dict[tuple[int, int], list[Entry]] = {}
    screened: list[float] = []
    findings: list[str] = []
    for attacker, (canary, _) in zip(attackers, everybody, strict=True):
        kind = len(canary[0]), int(math.log10(float(np.abs(canary[0]).max())))
        if kind not in transcripts:
            try:
                transcripts[kind] = attacker.run(attacker.worlds.inside)[1]
            except Exception as error:  # which tells that somebody like this is there
                transcripts[kind] = []
                findings.append(f"a canary's values raise {type(error).__name__}")
        screened.append(attacker.screen(transcripts[kind]).size)
        findings.extend(attacker.excesses(transcripts[kind], adjacency))
    tried = []
    for at in _finalists(screened, [max(float(np.abs(part).max()) for part in canary) for canary, _ in everybody]):
        try:
            powers = [attackers[at].power()]
            if math.isinf(powers[0].mu):  # without noise any canary that moves a sum is seen
                return Search(attackers[at], powers[0], powers[0], tuple(dict.fromkeys(findings)))
            powers.extend(attackers[at].power() for _ in range(_REPEATS))
        except Exception as error:
            findings.append(f"a canary's values raise {type(error).__name__}")
            powers = [Power()]
        tried.append((attackers[at], powers))
    attacker, powers = max(tried, key=lambda one: _typical(one[1]).size)
    found = tuple(dict.fromkeys(findings))
    return Search(attacker, _typical(powers), max(powers, key=lambda power: math.hypot(power.mu, *power.pure)), found)


def _finalists(powers: Sequence[float], sizes: Sequence[float]) -> list[int]:
    """Return the positions of the most powerful canaries, and of the largest of those nearly as powerful."""
    by_power = sorted(range(len(powers)), key=lambda at: powers[at])
    close = [at for at in by_power if powers[at] >= _CLOSE * powers[by_power[-1]]]
    return list(dict.fromkeys([*by_power[-_FINALISTS:], *sorted(close, key=lambda at: sizes[at])[-_FINALISTS:]]))


def _distinct(pairs: Iterator[tuple[User, User]], adjacency: Adjacency) -> Iterator[tuple[User, User]]:
    """Leave out canaries that differ only by their replacement, where nobody is replaced."""
    seen: set[bytes] = set()
    for canary, replacement in pairs:
        key = b"".join(np.ascontiguousarray(part).tobytes() for part in canary)
        if adjacency is Adjacency.REPLACE_ONE or key not in seen:
            seen.add(key)
            yield canary, replacement


def _typical(powers: Sequence[Power]) -> Power:
    mu = math.sqrt(np.mean([power.mu**2 for power in powers]))
    alike = [power for power in powers if len(power.pure) == len(powers[0].pure)]
    pure, often = (
        tuple(float(mean) for mean in np.mean(choices, axis=0))
        for choices in ([power.pure for power in alike], [power.often for power in alike])
    )
    return Power(mu, pure, often)


def exact_findings(attacker: Attacker, adjacency: Adjacency) -> Iterator[str]:
    """Yield what differs between the worlds although the released values are the same, and sums that move too far."""
    try:
        model, entries = attacker.run(attacker.worlds.inside)
        twin, replayed = attacker.run(attacker.worlds.outside, [entry.value for entry in entries])
    except Exception as error:
        yield f"raises {type(error).__name__} in one of the worlds"
        return
    if not entries:
        yield "nothing was released through the federation, yet a result is published"
    if len(entries) != len(replayed):
        yield f"makes {len(entries)} releases with the canary and {len(replayed)} without, given the same values"
    for entry, other in zip(entries, replayed, strict=False):
        name = entry.release.name
        # A replayed release asks nobody, so of groups that take turns only the first query is recorded.
        both = min(len(entry.queries), len(other.queries))
        if entry.release.name != other.release.name or not _same(entry.queries[:both], other.queries[:both]):
            yield f"{name}: the query depends on the canary's rows"
        if entry.event != other.event:
            yield f"{name}: the noise or the clip depends on the canary's rows"
        if np.isfinite(entry.value).all():
            inside, outside = attacker.known(entry)
            moved, allowed = float(np.linalg.norm(inside - outside)), entry.event.sensitivity.under(adjacency)
            if isinstance(entry.queries[0], Scores):
                moved, allowed = float(np.abs(inside - outside).max()), float(entry.queries[0].steps)
                if adjacency is Adjacency.ZERO_OUT and (inside > outside).any() and (inside < outside).any():
                    yield f"{name}: the canary raises some totals and lowers others"
            if moved > allowed:
                yield f"{name}: the canary moves the sum by {moved / allowed:.4g} times its sensitivity"
    for name, array in model.public_arrays().items():
        if not np.array_equal(array, twin.public_arrays()[name], equal_nan=True):
            yield f"{name}_: is published and depends on the canary's rows other than through releases"


def noise_findings(attacker: Attacker, runs: int = 20) -> Iterator[str]:
    """Yield where noise is not what the ledger states: too small, or used twice."""
    energy: dict[str, tuple[float, int]] = {}
    seen: dict[int, list[Array]] = {}
    for _ in range(runs):
        try:
            entries = attacker.run(attacker.worlds.outside)[1]
        except Exception:
            return  # the exact checks report it
        for entry in entries:
            event = entry.event
            if not isinstance(event, GaussianEvent):
                continue  # a selection releases an index, which shows no noise
            if event.sampling_rate < 1 or not event.private:
                continue
            noise = (entry.value.ravel() - attacker.without(entry)) / attacker.sigma(entry)
            total, count = energy.get(entry.release.name, (0.0, 0))
            energy[entry.release.name] = (total + float(noise @ noise), count + noise.size)
            seen.setdefault(noise.size, []).append(noise)
    for name, (total, count) in energy.items():
        if chi2.cdf(total, count) < _FALSE_ALARM:
            yield f"{name}: the noise has {math.sqrt(total / count):.3g} of the standard deviation in the ledger"
        if chi2.sf(total, count) < _FALSE_ALARM:
            yield f"{name}: noise has {math.sqrt(total / count):.3g} times the standard deviation that is stated"
    for size, vectors in seen.items():
        stacked = np.array(vectors)
        if size > 1 and len(np.unique(np.round(stacked, 9), axis=0)) < len(stacked):
            yield f"the same noise is used twice ({size} coordinates)"
        # Independent Gaussian vectors have full rank, so a direction without noise (an antisymmetric part, a forgotten
        # coordinate) shows as a loss of rank.
        elif np.linalg.matrix_rank(stacked) < min(stacked.shape):
            yield f"some direction has no independent noise ({size} coordinates)"


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
    """Whether a user's contribution follows from the query's fields and the user's rows, and the sum is of all users.

    So it is but for networks, whose queries may keep state at home; and the odds of a selection depend on the totals.
    """
    query = entry.queries[0]
    at_home = any(kind.__module__.startswith("tacitly.neural") for kind in type(query).__mro__)
    return len(entry.queries) == 1 and not at_home and not isinstance(query, Scores)


def _sum_of(door: LocalFederation, entry: Entry) -> Array:
    """Return the exact sum of the users behind a door; losses of a selection are counted in integer steps."""
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
    """Return the estimator with class names replaced by numbers, because a cohort holds numbers."""
    classes = getattr(estimator, "classes", None)
    if classes is None or not isinstance(classes[0], str):
        return estimator
    parameters = {**estimator.get_params(deep=False), "classes": list(range(len(classes)))}
    numbered: PrivateModel = type(estimator)(**parameters)
    return numbered


def _same(first: Any, second: Any) -> bool:
    """Whether two queries are equal in every public field, to the last bit."""
    if type(first) is not type(second):
        return False
    if isinstance(first, tuple | list):
        return len(first) == len(second) and all(_same(a, b) for a, b in zip(first, second, strict=True))
    if isinstance(first, np.ndarray):
        return np.array_equal(first, second, equal_nan=first.dtype.kind == "f")
    if is_dataclass(first):
        # Fields with compare=False are executors, not public values.
        return all(_same(getattr(first, f.name), getattr(second, f.name)) for f in fields(first) if f.compare)
    return bool(first == second)
