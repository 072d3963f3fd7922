"""Run a complete audit and report the result in plain words."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.stats import norm

from tacitly.audit.attack import Attacker, first_certificate, many_runs
from tacitly.audit.bounds import Bound, from_runs
from tacitly.audit.findings import exact_findings, noise_findings
from tacitly.audit.search import strongest
from tacitly.audit.side_channels import side_channels
from tacitly.methods.base import PrivateModel
from tacitly.privacy.accounting import mu_of
from tacitly.privacy.guarantee import Adjacency, GaussianEvent, Unit

QUICK, FULL = 300, 10_000


@dataclass(frozen=True, kw_only=True)
class Audit:
    """Result of an audit: the claim, the bound the strongest attack proves, and the findings of exact checks."""

    estimator: str
    claimed: float
    certified: bool
    adjacency: Adjacency
    unit: Unit
    counts: Bound
    gaussian: Bound | None
    findings: tuple[str, ...]
    canary: float
    accuracy: float
    accuracy_allowed: float
    clock: Bound

    @property
    def proved(self) -> float:
        """Best lower bound on ε."""
        return max(self.counts.epsilon, self.gaussian.epsilon if self.gaussian is not None else 0.0)

    @property
    def ceiling(self) -> float:
        """The largest ε that this number of runs could prove, by the stronger bound."""
        return max(self.counts.ceiling, self.gaussian.ceiling if self.gaussian is not None else 0.0)

    @property
    def ok(self) -> bool:
        """Whether nothing contradicts the claim."""
        return self.promises and self.proved <= self.claimed and not self.findings

    @property
    def promises(self) -> bool:
        """Whether anything is claimed: ε = ∞ is no guarantee."""
        return math.isfinite(self.claimed)

    @property
    def sampling_error(self) -> float:
        """Half of the 95 % interval of ``accuracy``, which is measured on half of the runs in each world."""
        guesses = self.counts.runs / 2
        right, tried = self.accuracy * guesses + 2, guesses + 4  # Agresti–Coull interval
        return 1.96 * math.sqrt(right * (tried - right) / tried**3)

    def __str__(self) -> str:
        guesses = (
            f"guesses whether the canary took part are right {self.accuracy:.1%} of the time, up to a sampling error "
            f"of {self.sampling_error:.1%} (a coin: 50.0%"
        )
        lines = [f"{self._claim()} ({self.adjacency}, unit: {self.unit})", self._proof()]
        if self.promises:
            lines.append(f"{guesses}; the claim allows {self.accuracy_allowed:.1%})")
            lines.append(f"the canary has {self.canary:.0%} of the power that the claim covers")
        else:
            lines.append(f"{guesses})")
        lines.append(f"from running times alone, which no certificate covers: at least {self.clock.epsilon:.2f}")
        lines += [f"BROKEN: {text}" for text in self.findings]
        if not self.promises:
            lines.append(
                "BROKEN: there is no noise, so nothing is promised: whoever sees the model can tell whether somebody "
                "took part. Fit it with a finite epsilon before you share it."
            )
        if self.proved > self.claimed:
            lines.append("BROKEN: more is proved than is claimed")
        return "\n".join(lines)

    def _claim(self) -> str:
        if not self.promises:
            return f"{self.estimator}: not certified, ε = ∞: sums are released without noise"
        kind = "certified" if self.certified else "not certified; its paper claims"
        return f"{self.estimator}: {kind} ε = {self.claimed:.2f} at δ = {self.counts.delta:g}"

    def _proof(self) -> str:
        """Return what was proved, and what each of the two bounds could have proved with that many runs."""
        most = f"{self.counts.ceiling:.1f} by counting"
        if self.gaussian is not None:
            most += f", {self.gaussian.ceiling:.1f} where the noise is taken to be Gaussian, as claimed"
        return (
            f"the strongest known attack proves at least {self.proved:.2f} ({self.counts.confidence:.0%} confidence), "
            f"and could have proved at most, with {self.counts.runs} runs: {most}"
        )


def audit(
    estimator: PrivateModel,
    *,
    runs: int = QUICK,
    claimed: float | None = None,
    confidence: float = 0.95,
    workers: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> Audit:
    """Attack an estimator as users would run it: many fits on two neighbouring cohorts of synthetic users.

    Parameters
    ----------
    estimator
        Any estimator of tacitly, or your own that learns through a federation. It need not be fitted.
    runs
        Fits in each world. A few hundred find serious errors; 10,000 can prove bounds near the claim.
    claimed
        The ε to test; None for the ε in the estimator's certificate.
    confidence
        Probability that the bound holds.
    workers
        Number of processes; None for all cores if there are at least 1,000 runs, else one.
    progress
        Called with the number of runs finished since the last call.

    Examples
    --------
    >>> import tacitly
    >>> report = audit(tacitly.FedPower(1, epsilon=1.0, unit="user"), runs=20)
    >>> report.ok, round(report.claimed, 3)
    (True, 1.0)
    """
    certificate = first_certificate(estimator)
    budget = certificate.budget
    if claimed is None:
        claimed = certificate.epsilon if certificate.certified else certificate.nominal_epsilon or math.inf
    # Without a guarantee, one run would be enough to distinguish the worlds, and side channels are irrelevant.
    promises = math.isfinite(claimed)
    runs = runs if promises else min(runs, QUICK)
    hostile = list(side_channels(estimator, budget.unit)) if promises else []
    attacker, power, most, excesses = strongest(estimator, budget.unit, budget.adjacency)
    findings = [*hostile, *exact_findings(attacker, budget.adjacency), *excesses, *noise_findings(attacker)]
    if certificate.certified and most.share(certificate.epsilon, budget.delta) > 1.001:
        findings.append("the strongest canary moves releases by more than the certificate covers")
    workers = (os.cpu_count() or 1 if runs >= 1000 else 1) if workers is None else workers
    inside, outside = many_runs(attacker, runs, workers=workers, progress=progress)
    seen, unseen = inside[:, :-1], outside[:, :-1]
    whole = all(
        isinstance(release.event, GaussianEvent) and release.event.sampling_rate == 1.0
        for release in certificate.releases
    )
    # If two bounds come from the same runs, each gets half of the allowed error probability.
    each = 1 - (1 - confidence) / 2 if whole and promises else confidence
    return Audit(
        estimator=type(estimator).__name__,
        claimed=claimed,
        certified=certificate.certified,
        adjacency=budget.adjacency,
        unit=budget.unit,
        counts=_stated(from_runs(seen, unseen, budget.delta, confidence=each), confidence),
        gaussian=_stated(from_runs(seen, unseen, budget.delta, confidence=each, gaussian=True), confidence)
        if whole and promises
        else None,
        findings=tuple(findings),
        canary=power.share(claimed, budget.delta),
        accuracy=guessing(seen, unseen),
        clock=from_runs(inside[:, -1], outside[:, -1], budget.delta, confidence=confidence),
        accuracy_allowed=guessing_allowed(claimed, budget.delta, gaussian=whole),
    )


def guessing(inside: npt.ArrayLike, outside: npt.ArrayLike) -> float:
    """Return how often a threshold on one statistic guesses the world correctly; it is chosen on half of the runs.

    >>> rng = np.random.default_rng(0)
    >>> 0.9 < guessing(rng.normal(3, 1, 4000), rng.normal(0, 1, 4000)) < 0.96
    True
    """
    here, there = (np.asarray(x, dtype=np.float64).reshape(len(np.asarray(x)), -1) for x in (inside, outside))
    best = (-1.0, 0, 0.0, 1.0)
    for column in range(here.shape[1]):
        for threshold in np.quantile(np.concatenate([here[::2, column], there[::2, column]]), np.linspace(0, 1, 41)):
            for sign in (1.0, -1.0):
                right = np.mean(sign * here[::2, column] > sign * threshold)
                right = (right + np.mean(sign * there[::2, column] <= sign * threshold)) / 2
                best = max(best, (float(right), column, float(threshold), sign))
    _, column, threshold, sign = best
    hits = np.mean(sign * here[1::2, column] > sign * threshold)
    return float((hits + np.mean(sign * there[1::2, column] <= sign * threshold)) / 2)


def guessing_allowed(epsilon: float, delta: float, *, gaussian: bool = True) -> float:
    """Return how often an attacker can guess a fair coin correctly at most, if the claim holds.

    >>> round(guessing_allowed(1.0, 1e-5, gaussian=False), 3), round(guessing_allowed(1.0, 1e-5), 3)
    (0.731, 0.553)
    """
    if math.isinf(epsilon):
        return 1.0
    if gaussian:
        return float(norm.cdf(mu_of(epsilon, delta) / 2))
    return min(1.0, (math.exp(epsilon) + delta) / (1 + math.exp(epsilon)))


def _stated(bound: Bound, confidence: float) -> Bound:
    return Bound(
        epsilon=bound.epsilon, ceiling=bound.ceiling, delta=bound.delta, confidence=confidence, runs=bound.runs
    )


__all__ = ["Attacker", "Audit", "audit", "guessing", "guessing_allowed"]
