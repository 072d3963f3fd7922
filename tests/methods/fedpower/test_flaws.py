"""The flaws P1 to P8 of the printed mechanism, reintroduced one by one: each fails a check that the sound routes pass.

The paper's neighbours differ by one entry of AᵀA; those used here do too. ``audit`` bounds ε from below (95 %): it
draws the observer's view of both, splits at a threshold chosen on other draws, and compares.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
import pytest
from scipy import stats

from adversary import neighbour_violations, violations
from tacitly.data.cohort import Cohort
from tacitly.federation.local import LocalFederation
from tacitly.linalg import orthonormal
from tacitly.methods.fedpower import algorithm as fedpower
from tacitly.methods.fedpower import as_printed as paper_fedpower
from tacitly.methods.fedpower.as_printed import Settings, iterates
from tacitly.methods.fedpower.power import DeviceStep, PowerStep
from tacitly.privacy.accounting import compose, delta_of
from tacitly.privacy.clipping import clip
from tacitly.privacy.guarantee import Adjacency, Budget, GaussianEvent, Sensitivity, Unit
from tacitly.privacy.ledger import Ledger

DELTA = 1e-5


def audit(first: np.ndarray, second: np.ndarray, delta: float = DELTA) -> float:
    """Return a lower bound on the ε of a mechanism from draws of its output on two neighbours."""
    half = len(first) // 2
    best = 0.0
    for a, b in ((first, second), (second, first)):
        for sign in (1.0, -1.0):
            cuts = np.quantile(sign * np.concatenate([a[:half], b[:half]]), [0.05, 0.25, 0.5, 0.75, 0.95, 0.97])
            seen = [np.count_nonzero(sign * a[:half] >= c) - np.count_nonzero(sign * b[:half] >= c) for c in cuts]
            cut = cuts[int(np.argmax(seen))]
            hits, others = (int(np.count_nonzero(sign * x[half:] >= cut)) for x in (a, b))
            low = stats.beta.ppf(0.025, hits, half - hits + 1) if hits else 0.0
            high = stats.beta.ppf(0.975, others + 1, half - others) if others < half else 1.0
            if low > delta:
                best = max(best, math.log((low - delta) / high))
    return best


def messages(matrices: np.ndarray, settings: Settings, runs: int, seed: int = 0) -> np.ndarray:
    """Orthonormalised sums hide scale, so test the aggregate itself: the r columns that the server broadcasts."""
    out = []
    sizes = np.ones(len(matrices))
    real = np.linalg.qr
    for run in range(runs):
        kept: list[np.ndarray] = []

        def watch(a, *rest, kept=kept, **more):  # type: ignore[no-untyped-def]
            kept.append(np.array(a))
            return real(a, *rest, **more)

        paper_fedpower.np.linalg.qr = watch
        try:
            for _ in iterates(matrices, sizes, settings.iteration_rank, settings, np.random.default_rng([seed, run])):
                break
        finally:
            paper_fedpower.np.linalg.qr = real
        out.append(kept[-1])
    return np.array(out)


def test_the_audit_finds_what_is_there_and_no_more() -> None:
    rng = np.random.default_rng(0)
    mu = 0.2681  # ε = 1 at δ = 1e-5
    assert audit(rng.normal(size=200_000), mu + rng.normal(size=200_000)) < 1.0
    assert 0.5 < audit(rng.normal(size=200_000), 4 * mu + rng.normal(size=200_000)) < 4.6


@dataclass(frozen=True)
class LocalStepsOfRows(PowerStep):
    """P1: rows are clipped as if the basis they are multiplied with were public, but it is computed from them."""

    steps: int = 4

    def block_sum(self, X, y, offsets, bound):  # type: ignore[no-untyped-def]
        rows = X[np.isfinite(X).all(axis=1)] - self.centre
        rows = rows * np.minimum(1.0, math.sqrt(bound) / np.linalg.norm(rows, axis=1))[:, None]
        local = self.basis
        for _ in range(self.steps - 1):
            local = self.orthonormal(rows.T @ (rows @ local))
        return (rows.T @ (rows @ local)).ravel()

    def orthonormal(self, matrix: np.ndarray) -> np.ndarray:
        return orthonormal(matrix)[0]


def device(rng: np.random.Generator) -> np.ndarray:
    """Rows of one device with two directions of about the same strength."""
    return 0.5 * rng.normal(size=(40, 4)) * [0.3, 1.0, 1.0, 0.3]


def test_p1_local_steps_without_noise_move_by_more_than_a_row() -> None:
    """Sound for the unit device, whose clip bounds it; as a row's contribution the same message is unbounded."""
    X, offsets = device(np.random.default_rng(1)), np.array([0, 40])
    for start in np.eye(4)[:, 1:3].T:
        basis = start[:, None]
        assert neighbour_violations(LocalStepsOfRows(basis, np.zeros(4), 1e-3), 1.0, X, offsets)
        assert not neighbour_violations(LocalStepsOfRows(basis, np.zeros(4), 1e-3, steps=1), 1.0, X, offsets)
        assert not neighbour_violations(PowerStep(basis, np.zeros(4), 1e-3), 1.0, X, offsets)
    with pytest.raises(ValueError, match="protects unit 'user'"):
        fedpower.Settings(route="device", unit=Unit.ROW)


def test_p2_noise_scaled_by_a_private_basis_tells_of_the_rows() -> None:
    d = 60
    settings = Settings(iterations=2, local_steps=2, iteration_rank=1, epsilon_local=0.5, epsilon_central=math.inf)
    seen = []
    for corner in (0.0, 1.0):
        matrix = np.diag(np.r_[corner, np.full(d - 1, 1e-3)])[None]
        sent = messages(matrix, settings, 400)
        seen.append(np.std(sent[:, 1:, 0], axis=1))
    assert audit(*seen) > 2 * 1.0  # claimed (2ε, 2δ) = (1, 2e-5)


@dataclass(frozen=True)
class AlignedWithTheFirst(DeviceStep):
    """P3: every device aligns its message with the first device's basis instead of the public one."""

    def block_sum(self, X, y, offsets, bound):  # type: ignore[no-untyped-def]
        target, total = None, np.zeros(self.coordinates)
        for first, last in itertools.pairwise(offsets):
            rows = np.where(np.isfinite(X[first:last]), X[first:last], 0.0)
            local = orthonormal(rows.T @ (rows @ self.basis))[0]
            target = local if target is None else target
            turn = fedpower.ALIGNMENTS[self.alignment](local, target)
            total += clip((rows.T @ (rows @ local @ turn)).ravel(), bound)
        return total


@pytest.mark.parametrize("alignment", ["procrustes", "signs"])
def test_p3_a_device_aligned_with_another_speaks_of_it(alignment: str) -> None:
    X, offsets = np.random.default_rng(2).normal(size=(48, 5)) * [0.3, 0.3, 2, 2, 2], np.arange(0, 49, 6)
    basis = np.eye(5)[:, :2]
    assert neighbour_violations(AlignedWithTheFirst(basis, 2, alignment), 1.0, X, offsets)
    assert not neighbour_violations(DeviceStep(basis, 2, alignment), 1.0, X, offsets)


def sent_by(matrices: np.ndarray, settings: Settings, seed: list[int]) -> np.ndarray:
    """Return every device's noisy message of the printed algorithm's first communication, as the server sees them."""
    seen: list[np.ndarray] = []
    real = paper_fedpower._aggregate

    def watch(messages, *rest):  # type: ignore[no-untyped-def]
        seen.append(messages)
        return real(messages, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paper_fedpower, "_aggregate", watch)
        next(iterates(matrices, np.ones(len(matrices)), 1, settings, np.random.default_rng(seed)))
    return seen[0]


TWO_STEPS = Settings(iterations=2, local_steps=2, alignment="signs", epsilon_local=0.5, epsilon_central=math.inf)


def test_p3_the_printed_messages_of_others_tell_of_the_first_device() -> None:
    """One entry of the first device's matrix flips the second device's message: ε ≥ 2 where 1 is claimed."""
    seen = []
    for corner in (0.0, 1.0):
        matrices = np.array([np.diag([1.0, corner]), 1e3 * np.eye(2)])
        seen.append(np.array([sent_by(matrices, TWO_STEPS, [3, run])[1, 0, 0] for run in range(400)]))
    assert audit(*seen) > 2.0


class JumpingSigns(LocalStepsOfRows):
    """P4: LAPACK's sign convention, which follows the first entry."""

    def orthonormal(self, matrix: np.ndarray) -> np.ndarray:
        return np.linalg.qr(matrix)[0]


def test_p4_orthonormalising_private_numbers_jumps() -> None:
    """A row of length 1e-4 decides the sign of the first entry, and so flips all others."""
    X = np.array([[0.1, -0.1 - 1e-8], [0.0, 0.9], [0.0, 0.9], [1e-4, 0.0]])
    basis, offsets = np.full((2, 1), math.sqrt(0.5)), np.array([0, 4])
    jumps = neighbour_violations(JumpingSigns(basis, np.zeros(2), 1e-3, steps=2), 1.0, X, offsets)
    assert any(violation.startswith("unit 3, as it is") for violation in jumps)
    assert not neighbour_violations(PowerStep(basis, np.zeros(2), 1e-3), 1.0, X, offsets)


def test_p4_the_printed_message_jumps_too() -> None:
    """Changing A₁₁ from 1 to 2 flips the message in every tenth run, given the known start: ε ≥ 2, 1 claimed."""
    seen = []
    for corner in (1.0, 2.0):
        matrix, turned = np.array([[corner, 1.5], [1.5, 1e3]]), []
        for run in range(2000):
            start = np.linalg.qr(np.random.default_rng([4, run]).normal(size=(2, 1)))[0]
            known = np.array([[1.0, 1.5], [1.5, 1e3]])
            expected = known @ np.linalg.qr(known @ start)[0]
            turned.append(float(np.sign(np.sum(sent_by(matrix[None], TWO_STEPS, [4, run])[0] * expected))))
        seen.append(np.array(turned))
    assert audit(*seen) > 2.0


def noise_free_ending(federation: LocalFederation, rows: np.ndarray) -> np.ndarray:
    """P5: one more local step on private rows after the last release."""
    settings = fedpower.Settings(route="power", rounds=2, seed=0, low=np.full(3, -5.0), high=np.full(3, 5.0))
    plan = settings.plan(Budget(epsilon=1.0, delta=1e-6, unit=Unit.ROW))
    found = fedpower.learn(federation, plan, settings, 1).components
    return np.linalg.qr(rows.T @ (rows @ found.T))[0]


def test_p5_steps_after_the_last_release_are_not_a_function_of_the_releases() -> None:
    rng = np.random.default_rng(3)
    X = rng.normal(size=(200, 3)) * [3.0, 1.0, 1.0]
    changed = X.copy()
    changed[0] = [0.0, 40.0, 0.0]
    answers: list[np.ndarray] = []

    def federation(rows: np.ndarray) -> LocalFederation:
        data = Cohort.from_offsets(rows, None, np.array([0, 200]))
        return LocalFederation(data, Ledger().run("test", config={}), noise="float")

    first = federation(X)
    released = first.release
    first.release = lambda *asked: answers.append(released(*asked)) or answers[-1]  # type: ignore[method-assign,func-returns-value]
    outputs = [noise_free_ending(first, X)]
    second, transcript = federation(changed), iter(answers)
    second.release = lambda *asked: next(transcript)  # type: ignore[method-assign]
    outputs.append(noise_free_ending(second, changed))
    assert not np.array_equal(outputs[0], outputs[1])  # the check of test_algorithm.py fails on it, as it must


@dataclass(frozen=True)
class LargestEntryOnly(PowerStep):
    """P6: the clip bounds the largest column of the product, not all of them together."""

    def block_sum(self, X, y, offsets, bound):  # type: ignore[no-untyped-def]
        total = np.zeros(self.coordinates)
        for row in X:
            with np.errstate(all="ignore"):
                product = self.contribution(row[None], y).reshape(len(row) + 1, -1)
                norm = np.linalg.norm(product, axis=0).max()
                if np.isfinite(norm) and norm > 0:
                    total += product.ravel() * min(1.0, bound / norm)
        return total


def test_p6_stacked_columns_move_by_all_of_them() -> None:
    hadamard = np.array([[1.0, 1, 1, 1], [1, -1, 1, -1], [1, 1, -1, -1], [1, -1, -1, 1]]) / 2
    assert violations(LargestEntryOnly(hadamard, np.zeros(4), 1e-3), 1.0, 4)
    assert not violations(PowerStep(hadamard, np.zeros(4), 1e-3), 1.0, 4)


def test_p6_the_printed_noise_is_worth_less_than_it_claims() -> None:
    """One entry of AᵀA moves a row of MZ: ‖row of Z‖₂ against ‖Z‖_max. r = 16 Hadamard columns, R = 1, ε = ½."""
    r, epsilon = 16, 0.5
    sigma = math.sqrt(2 * math.log(1.25 / DELTA)) / epsilon  # times ‖Z‖_max
    assert delta_of(1.0 / sigma, epsilon) < DELTA
    assert delta_of(math.sqrt(r) / sigma, epsilon) > 100 * DELTA


def test_p7_a_device_takes_part_more_often_than_the_proof_says() -> None:
    """m = 10,000, K = 5,000: the printed noise for q = 1/m, accounted at the true participation probability K/m."""
    m, k, epsilon = 10_000, 5_000, 1.0
    sigma = math.sqrt(2 * math.log(1.25 / (m * DELTA))) / epsilon
    sensitivity = Sensitivity.of_clip(1.0)
    at = {q: GaussianEvent(sigma=sigma, sensitivity=sensitivity, sampling_rate=q) for q in (1 / m, k / m, 1.0)}
    true = {q: compose([event], Adjacency.ZERO_OUT, DELTA) for q, event in at.items()}
    assert true[1 / m] < epsilon < true[k / m] < true[1.0]


def test_p8_a_weight_after_the_clip_is_caught() -> None:
    """Scheme 2 multiplies by m/K after the noise was fixed; a device drawn twice counts twice."""

    @dataclass(frozen=True)
    class Reweighted(DeviceStep):
        def block_sum(self, X, y, offsets, bound):  # type: ignore[no-untyped-def]
            return 4.0 * super().block_sum(X, y, offsets, bound)

    assert violations(Reweighted(np.eye(4)[:, :2], 2), 1.0, 4)
    assert not violations(DeviceStep(np.eye(4)[:, :2], 2), 1.0, 4)


def test_the_sound_device_route_survives_the_attacks_on_the_printed_one() -> None:
    """The neighbours of P2 and P4 at the sound route's noise: the best statistic stays within ε = 1."""
    d, rng = 20, np.random.default_rng(4)
    start = np.linalg.qr(rng.normal(size=(d, 1)))[0]
    query = DeviceStep(start, 2)
    event = GaussianEvent(sigma=1 / 0.2681, sensitivity=Sensitivity.of_clip(1.0))
    seen = []
    for corner in (0.0, 1.0):
        X = np.sqrt(np.diag(np.r_[corner, np.full(d - 1, 1e-3)]))
        federation = LocalFederation(
            Cohort.from_offsets(X, None, np.array([0, d])), Ledger().run("test", config={}), noise="float"
        )
        exact = federation._exact_sum(query, 1.0, 2.0**-40) * 2.0**-40
        noisy = exact + event.sigma * rng.normal(size=(20_000, d))
        seen.append(noisy)
    direction = seen[1].mean(axis=0) - seen[0].mean(axis=0)
    assert audit(seen[0] @ direction, seen[1] @ direction) < 1.0
    assert audit(np.std(seen[0], axis=1), np.std(seen[1], axis=1)) < 1.0
