"""Checks that nothing differs between two neighbouring worlds, and that the noise is what the ledger states.

Exact checks replay a transcript: with the same released values in both worlds, everything else must be identical too:
the queries, the noise, the schedule, and every public array of the result.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
from scipy.stats import chi2

from tacitly.arrays import Array
from tacitly.audit.attack import Attacker
from tacitly.federation.scores import Scores
from tacitly.privacy.guarantee import Adjacency, GaussianEvent

_FALSE_ALARM = 1e-9


def exact_findings(attacker: Attacker, adjacency: Adjacency) -> Iterator[str]:
    """Yield differences between the worlds given the same released values, and sums that move too far."""
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
        # A replayed release sends no queries, so if groups take turns, only the first query is recorded.
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
                continue  # a selection releases an index, which contains no visible noise
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
        # Independent Gaussian vectors have full rank, so a direction without noise (an antisymmetric part, a
        # coordinate that was left out) reduces the rank.
        elif np.linalg.matrix_rank(stacked) < min(stacked.shape):
            yield f"some direction has no independent noise ({size} coordinates)"


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
