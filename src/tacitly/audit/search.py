"""Search for the canary that is easiest to detect: screen all of them cheaply, then try the best in their own runs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from tacitly.audit.attack import Attacker, Power
from tacitly.audit.recording import Entry
from tacitly.audit.users import User
from tacitly.audit.worlds import canaries, worlds
from tacitly.methods.base import PrivateModel
from tacitly.privacy.guarantee import Adjacency, Unit

_CLOSE = 0.97  # powers above this share of the largest are treated as equal to it
_FINALISTS, _REPEATS = 3, 3  # canaries of each kind that are tried in their own runs, and number of repetitions


class Search(NamedTuple):
    """The attacker with the strongest canary, its power (typical, and the largest in any run), and the findings."""

    attacker: Attacker
    typical: Power
    most: Power
    findings: tuple[str, ...] = ()


def strongest(estimator: PrivateModel, unit: Unit, adjacency: Adjacency) -> Search:
    """Try all canaries.

    What a canary contributes to the queries of a run hardly depends on which canary of its size and number of rows took
    part in that run, because with so few users noise dominates all contributions. So canaries of the same kind are
    screened with the queries of one run, in which none of them may move a sum by more than its sensitivity. The best
    canaries get their own runs: the most powerful, and among the nearly as powerful those with the largest values.
    There are several, because a clipping bound found privately is noisy: a canary may reach it in one run and not in
    the next.
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
            except Exception as error:  # an error reveals that such a user takes part
                transcripts[kind] = []
                findings.append(f"a canary's values raise {type(error).__name__}")
        screened.append(attacker.screen(transcripts[kind]).size)
        findings.extend(attacker.excesses(transcripts[kind], adjacency))
    tried = []
    for at in _finalists(screened, [max(float(np.abs(part).max()) for part in canary) for canary, _ in everybody]):
        try:
            powers = [attackers[at].power()]
            if math.isinf(powers[0].mu):  # without noise, any canary that moves a sum is detected
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
    """Leave out canaries that differ only in their replacement, if users are not replaced."""
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
