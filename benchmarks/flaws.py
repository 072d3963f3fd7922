"""Small models of the flaws in the papers' mechanisms: each with neighbours that break it, and corrected.

A case draws many independent runs at once in two neighbouring worlds and returns the statistics of an attacker who
knows everything except which world it is. Identifiers are those of the privacy specification: F CENTAUR, P FedPower,
R DP-RGrad, V Private FedRep, M AMHT-LRS. Nothing here is part of the package.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.integrate import quad
from scipy.linalg import hadamard
from scipy.special import logsumexp
from scipy.stats import binom, norm

from tacitly.privacy.accounting import epsilon_of, mu_of

Rng = np.random.Generator
Pair = tuple[np.ndarray, np.ndarray]
Draw = Callable[[Rng, int], Pair]


@dataclass(frozen=True)
class Case:
    """One flaw with its claim and both versions; ``gaussian`` if the corrected version is Gaussian-DP.

    ``tight`` if the two worlds are as far apart as the corrected noise allows: no attack can prove more than the claim.
    """

    id: str
    what: str
    claim: float
    delta: float
    flawed: Draw
    sound: Draw
    gaussian: bool = True
    exact: float | None = None
    tight: bool = True


def classic(epsilon: float, delta: float, sensitivity: float = 1.0) -> float:
    """Return σ of the classic Gaussian mechanism (the formula with 1.25), as the papers use it."""
    return sensitivity * math.sqrt(2 * math.log(1.25 / delta)) / epsilon


def read(inside: np.ndarray, outside: np.ndarray, sigma: np.ndarray | float, rng: Rng, runs: int) -> Pair:
    """Draw Gaussian releases around two known means; return likelihood ratio and energy of each run.

    ``sigma`` may be a pair of levels, one per world, which models noise that depends on the data.
    """
    shift = np.ravel(inside - outside)
    levels = np.broadcast_to(np.asarray(sigma, dtype=float), (2,))
    unit = max(levels.max(), 1e-12)
    worlds = []
    for mean, level in ((shift, levels[0]), (np.zeros_like(shift), levels[1])):
        rest = mean + level * rng.normal(size=(runs, shift.size))
        worlds.append(np.column_stack([rest @ shift / unit**2, np.sum(rest**2, axis=1) / unit**2]))
    return worlds[0], worlds[1]


def moved(inside: np.ndarray, outside: np.ndarray, sigma: float) -> Draw:
    return lambda rng, runs: read(inside, outside, sigma, rng, runs)


def direction(d: int, length: float = 1.0) -> np.ndarray:
    vector = np.zeros(d)
    vector[0] = length
    return vector


# --- CENTAUR ----------------------------------------------------------------------------------------------------------


def one_sided_update(claim: float = 4.0, delta: float = 1e-5, rounds: int = 10) -> Case:
    """F1: noise calibrated to one clip, although replacing a user moves the sum by two."""
    canary = np.tile(direction(6), rounds)
    level = math.sqrt(rounds) / mu_of(claim, delta)
    return Case(
        "F1",
        "CENTAUR: sensitivity ζ under replace-one",
        claim,
        delta,
        moved(canary, -canary, level),
        moved(canary, -canary, 2 * level),
        exact=epsilon_of(2 * mu_of(claim, delta), delta),
    )


def closed_form(mu: float = 2.0, delta: float = 1e-5, rounds: int = 20) -> Case:
    """F2: ε = 2√(T log(1/δ))/σ for a loop whose μ is 2√T/σ."""
    sigma = 2 * math.sqrt(rounds) / mu
    claim = 2 * math.sqrt(rounds * math.log(1 / delta)) / sigma
    canary = np.tile(direction(4), rounds)
    mended = 2 * math.sqrt(rounds) / mu_of(claim, delta)
    return Case(
        "F2",
        "CENTAUR: Theorem 5.2's closed form",
        claim,
        delta,
        moved(canary, -canary, sigma),
        moved(canary, -canary, mended),
        exact=epsilon_of(mu, delta),
    )


def cheap_direction(rate: float = 0.5, sigma: float = 0.4, rounds: int = 1, delta: float = 1e-5) -> Case:
    """F3: the Rényi divergence of a sampled Gaussian, taken in the smaller direction."""

    def renyi(order: float) -> float:
        def integrand(x: float) -> float:
            clean = norm.logpdf(x, 0, sigma)
            mixed = logsumexp([clean, norm.logpdf(x, 1, sigma)], b=[1 - rate, rate])
            return math.exp(order * clean + (1 - order) * mixed)

        return math.log(quad(integrand, -12 * sigma, 12 * sigma + 1)[0]) / (order - 1)

    orders = (1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128, 256)
    claim = min(rounds * renyi(order) + math.log(1 / delta) / (order - 1) for order in orders)

    def sampled(noise: float) -> Draw:
        def draw(rng: Rng, runs: int) -> Pair:
            there = rng.random((runs, rounds)) < rate
            worlds = []
            for part in (there, 0.0 * there):
                seen = part + noise * rng.normal(size=(runs, rounds))
                terms = np.log1p(rate * np.expm1((seen - 0.5) / noise**2))
                worlds.append(np.column_stack([terms.sum(axis=1), seen.sum(axis=1)]))
            return worlds[0], worlds[1]

        return draw

    # Noise that would suffice without sampling is certainly enough.
    return Case(
        "F3",
        "CENTAUR: Rényi divergence in the cheap direction",
        claim,
        delta,
        sampled(sigma),
        sampled(math.sqrt(rounds) / mu_of(claim, delta)),
        gaussian=False,
        tight=False,
    )


def realised_count(n: int = 10, rate: float = 0.5, rounds: int = 100, delta: float = 1e-5) -> Case:
    """F4: dividing by the number of participants scales the noise, which reveals a canary with a zero gradient."""
    coordinates, sigma = 20_000, 10.0

    def draw(rng: Rng, runs: int, fixed: bool) -> Pair:
        worlds = []
        for users in (n, n - 1):
            count = rng.binomial(users, rate, size=(runs, rounds))
            divisor = np.full_like(count, n) if fixed else count
            energy = rng.chisquare(coordinates, size=(runs, rounds)) / coordinates
            level = sigma * np.sqrt(energy) / np.maximum(divisor, 1)
            guess = np.clip(np.rint(sigma / level), 0, n).astype(int)
            ratio = binom.logpmf(guess, n, rate) - np.maximum(binom.logpmf(guess, n - 1, rate), -50)
            worlds.append(ratio.sum(axis=1)[:, None])
        return worlds[0], worlds[1]

    return Case(
        "F4",
        "CENTAUR: divides by the realised count",
        2.02,
        delta,
        lambda rng, runs: draw(rng, runs, False),
        lambda rng, runs: draw(rng, runs, True),
        gaussian=False,
        tight=False,
    )


def neither_sensitivity(claim: float = 8.0, delta: float = 1e-5, rounds: int = 8) -> Case:
    """F5: the power method is charged αL/σ², which holds for neither adjacency."""
    log = math.log(1 / delta)
    root = math.sqrt(log + claim) - math.sqrt(log)
    sigma = math.sqrt(rounds) / root
    canary = np.tile(direction(5), rounds)
    return Case(
        "F5",
        "CENTAUR: Lemma F.2's αL/σ²",
        claim,
        delta,
        moved(canary, -canary, sigma),
        moved(canary, -canary, 2 * math.sqrt(rounds) / mu_of(claim, delta)),
        exact=epsilon_of(2 * root, delta),
    )


# --- FedPower ---------------------------------------------------------------------------------------------------------


def unit(vector: np.ndarray) -> np.ndarray:
    """Normalise by Householder's convention for one column: the sign is opposite to that of the first entry."""
    length = np.linalg.norm(vector)
    if length == 0:
        return direction(len(vector))
    return -np.copysign(1.0, vector[0]) * vector / length


def local_state(claim: float = 1.0, delta: float = 1e-5) -> Case:
    """P1: two local steps, accounted as if the state between them were public."""
    start, matrix = direction(2), np.diag([0.0, 1000.0])
    neighbour = matrix + np.array([[0.0, 1.0], [1.0, 0.0]])
    inside, outside = neighbour @ unit(neighbour @ start), matrix @ unit(matrix @ start)
    clip = 1.0

    def clipped(v: np.ndarray) -> np.ndarray:
        return v * min(1.0, clip / np.linalg.norm(v)) if v.any() else v

    return Case(
        "P1",
        "FedPower: local steps on a private state",
        claim,
        delta,
        moved(inside, outside, classic(claim, delta)),
        moved(clipped(inside), clipped(outside), 2 * clip / mu_of(claim, delta)),
        tight=False,
    )


def noise_by_state(claim: float = 1.0, delta: float = 1e-5, d: int = 200) -> Case:
    """P2: noise scaled by the largest entry of the private state."""
    start = np.full(d, 1 / math.sqrt(d))
    states = []
    for corner in (1.0, 0.0):
        eigenvalues = np.full(d, 1e-3)
        eigenvalues[0] = corner
        states.append(unit(eigenvalues * start) * eigenvalues)
    levels = [classic(claim, delta) * np.abs(unit(s)).max() for s in states]
    return Case(
        "P2",
        "FedPower: noise scaled by a private state",
        claim,
        delta,
        lambda rng, runs: read(0 * states[0], 0 * states[1], np.array(levels), rng, runs),
        moved(states[0], states[1], np.linalg.norm(states[0] - states[1]) / mu_of(claim, delta)),
    )


def private_alignment(claim: float = 1.0, delta: float = 1e-5) -> Case:
    """P3: device 2 aligns its message with device 1's state before noise."""
    theirs = 1000.0 * np.array([0.6, 0.8])

    def message(first: np.ndarray) -> np.ndarray:
        return theirs * np.sign(first @ theirs)

    inside, outside = message(np.array([1.0, -0.7])), message(np.array([1.0, -0.8]))
    return Case(
        "P3",
        "FedPower: aligned to another device's private state",
        claim,
        delta,
        moved(inside, outside, classic(claim, delta)),
        moved(theirs, theirs, classic(claim, delta)),
        tight=False,
    )


def sign_jump(claim: float = 1.0, delta: float = 1e-5) -> Case:
    """P4: QR's sign convention jumps where the first entry crosses zero."""
    big = 1000.0

    def draw(rng: Rng, runs: int, flawed: bool) -> Pair:
        angle = rng.uniform(0, 2 * math.pi, runs)
        start = np.column_stack([np.cos(angle), np.sin(angle)])
        means = []
        for corner in (2.0, 1.0):
            matrix = np.array([[corner, 1.0], [1.0, big]])
            step = start @ matrix
            turned = step / np.linalg.norm(step, axis=1, keepdims=True)
            if flawed:
                turned *= -np.copysign(1.0, step[:, :1])
            else:  # aligned with the public start, and clipped as a whole
                turned *= np.copysign(1.0, np.sum(turned * start, axis=1, keepdims=True))
            means.append(turned @ matrix)
        if not flawed:
            means = [m / np.maximum(np.linalg.norm(m, axis=1, keepdims=True), 1.0) for m in means]
        level = classic(claim, delta) if flawed else 2 / mu_of(claim, delta)
        shift = means[0] - means[1]
        worlds = []
        for part in (shift, 0 * shift):
            rest = part + level * rng.normal(size=shift.shape)
            worlds.append(np.sum((rest - shift / 2) * shift, axis=1)[:, None] / level**2)
        return worlds[0], worlds[1]

    return Case(
        "P4",
        "FedPower: sign convention on private input",
        claim,
        delta,
        lambda rng, runs: draw(rng, runs, True),
        lambda rng, runs: draw(rng, runs, False),
        gaussian=False,
        tight=False,
    )


def noiseless_end(claim: float = 1.0, delta: float = 1e-5) -> Case:
    """P5: the output is computed by local steps after the last noise."""
    rows = np.eye(3) * np.array([3.0, 2.0, 1.0])
    neighbour = rows + np.diag([0.0, 1.0, 0.0])
    start = np.ones(3) / math.sqrt(3)
    outputs = [unit(m @ (m @ start)) for m in (neighbour, rows)]
    apart = np.linalg.norm(outputs[0] - outputs[1])
    return Case(
        "P5",
        "FedPower: output after noise-free steps",
        claim,
        delta,
        moved(outputs[0], outputs[1], 1e-9),
        moved(outputs[0], outputs[1], apart / mu_of(claim, delta)),
    )


def stacked_columns(claim: float = 0.5, delta: float = 1e-5, r: int = 16) -> Case:
    """P6: sensitivity by the largest entry of Z, although one entry of AᵀA moves two whole rows of AᵀA·Z."""
    basis = hadamard(r) / math.sqrt(r)
    change = np.zeros((r, r))
    change[0, 1] = change[1, 0] = 1.0
    shift = change @ basis
    return Case(
        "P6",
        "FedPower: largest entry for a whole row",
        claim,
        delta,
        moved(shift, 0 * shift, classic(claim, delta, np.abs(basis).max())),
        moved(shift, 0 * shift, np.linalg.norm(shift) / mu_of(claim, delta)),
        exact=epsilon_of(np.linalg.norm(shift) / classic(claim, delta, np.abs(basis).max()), delta),
    )


def sampling_that_is_seen(claim: float = 1.0, delta: float = 1e-5, devices: int = 10_000) -> Case:
    """P7: amplification by sampling with probability 1/m, towards a server that chose the device itself."""
    sigma = math.sqrt(2 * math.log(1.25 / (devices * delta))) / claim
    canary = direction(4)
    return Case(
        "P7",
        "FedPower: amplification by a choice the server sees",
        claim,
        delta,
        moved(canary, 0 * canary, sigma),
        moved(canary, 0 * canary, 1 / mu_of(claim, delta)),
        exact=epsilon_of(1 / sigma, delta),
    )


def forgotten_weight(claim: float = 1.0, delta: float = 1e-5, m: int = 100, k: int = 10) -> Case:
    """P8: messages are weighted by m/K, but the noise is calibrated to weight one."""
    canary = direction(4, m / k)
    return Case(
        "P8",
        "FedPower: weight m/K missing in the noise",
        claim,
        delta,
        moved(canary, 0 * canary, classic(claim, delta)),
        moved(canary, 0 * canary, (m / k) / mu_of(claim, delta)),
    )


# --- DP-RGrad ---------------------------------------------------------------------------------------------------------


def symmetric_noise(claim: float = 1.0, delta: float = 1e-5) -> Case:
    """R1: symmetric noise on a matrix that is not symmetric leaves its antisymmetric part without noise."""
    inside, outside = np.array([[1.0, 0.3], [0.1, 0.5]]), np.array([[1.0, 0.2], [0.2, 0.5]])

    def draw(rng: Rng, runs: int, symmetric: bool) -> Pair:
        worlds = []
        for mean in (inside, outside):
            apart = float(np.linalg.norm(inside - outside))
            level = classic(claim, delta, apart) if symmetric else apart / mu_of(claim, delta)
            noise = level * rng.normal(size=(runs, 2, 2))
            if symmetric:
                noise[:, 1, 0] = noise[:, 0, 1]
            seen = mean + noise
            antisymmetric = seen[:, 0, 1] - seen[:, 1, 0]
            worlds.append(np.column_stack([antisymmetric, np.sum(seen * (inside - outside), axis=(1, 2))]))
        return worlds[0], worlds[1]

    return Case(
        "R1",
        "DP-RGrad: symmetric noise, antisymmetric part",
        claim,
        delta,
        lambda rng, runs: draw(rng, runs, True),
        lambda rng, runs: draw(rng, runs, False),
    )


def projector_change(d: int, n: int = 1500, tries: int = 60) -> np.ndarray:
    """Return the largest change found of the projector on the top direction of Σ yᵢXᵢ/n by one replaced observation."""
    rng = np.random.default_rng(d)
    X = rng.normal(size=(n, d, d))
    truth = np.outer(np.ones(d), np.ones(d)) / d
    y = np.einsum("nij,ij->n", X, truth)
    total = np.einsum("n,nij->ij", y, X) / n

    def projector(matrix: np.ndarray) -> np.ndarray:
        left = np.linalg.svd(matrix)[0][:, :1]
        return left @ left.T

    base, furthest = projector(total), np.zeros((d, d))
    for i in range(tries):
        other = rng.normal(size=(d, d))
        replaced = total + (np.sum(other * truth) * other - y[i] * X[i]) / n
        change = projector(replaced) - base
        if np.linalg.norm(change) > np.linalg.norm(furthest):
            furthest = change
    return furthest


def missing_dimension(claim: float = 1.0, delta: float = 1e-5) -> Case:
    """R2: a sensitivity without √d: with its constant fitted at d = 6, too small at d = 60 on ordinary data."""
    small, large = (np.array([np.linalg.norm(projector_change(d))]) for d in (6, 60))
    return Case(
        "R2",
        "DP-RGrad: sensitivity without √d, ordinary data",
        claim,
        delta,
        moved(large, 0 * large, float(small[0]) / mu_of(claim, delta)),
        moved(large, 0 * large, math.sqrt(2) / mu_of(claim, delta)),
        tight=False,
    )


def outlier(claim: float = 0.125, delta: float = 1e-5, n: int = 4000) -> Case:
    """R3: a sensitivity that assumes well-behaved data, and one outlier."""
    sensitivity, gradient = 4 * 10.0 / n, direction(10, 100.0 * 100.0 / n)
    return Case(
        "R3",
        "DP-RGrad: one outlier",
        claim,
        delta,
        moved(gradient, 0 * gradient, classic(claim, delta, sensitivity)),
        moved(gradient * sensitivity / 2.5, 0 * gradient, sensitivity / mu_of(claim, delta)),
    )


def noise_used_twice(claim: float = 1.0, delta: float = 1e-5) -> Case:
    """R4: E_V equals E_U, so the difference of two releases has no noise."""

    def draw(rng: Rng, runs: int, again: bool) -> Pair:
        left, right = np.diag([1.0, 0.0]), np.diag([0.0, 1.0])
        level = classic(claim, delta, 2.0) if again else math.sqrt(2) / mu_of(claim, delta)
        worlds = []
        for there in (True, False):
            noise = level * rng.normal(size=(2, runs, 2, 2))
            if again:
                noise[1] = noise[0]
            first, second = left * there + noise[0], right * there + noise[1]
            worlds.append(np.column_stack([(first - second)[:, 0, 0], first[:, 0, 0] + second[:, 1, 1]]))
        return worlds[0], worlds[1]

    return Case(
        "R4",
        "DP-RGrad: noise used twice",
        claim,
        delta,
        lambda rng, runs: draw(rng, runs, True),
        lambda rng, runs: draw(rng, runs, False),
    )


# --- Private FedRep ---------------------------------------------------------------------------------------------------


def pair_statistic(y: np.ndarray) -> np.ndarray:
    """Return Z of a user with two equal rows; its sign is that of y₁y₂."""
    x = direction(3)
    return y[0] * y[1] * np.outer(x, x)


def clip_twice(claim: float = 1.0, delta: float = 1e-6, psi: float = 0.1, rounds: int = 5) -> Case:
    """V1: M/‖M‖·min(1, τ/‖M‖) scales any small matrix up to norm one."""

    def printed(matrix: np.ndarray) -> np.ndarray:
        length = np.linalg.norm(matrix)
        return matrix / length * min(1.0, psi / length)

    tiny = pair_statistic(np.array([1e-3, 1.0]))
    shift = np.tile(np.ravel(printed(tiny) - printed(-tiny)), rounds)
    level = psi * math.sqrt(16 * rounds * math.log(1.25 / delta)) / claim
    mended = np.tile(np.ravel(psi * (tiny / np.linalg.norm(tiny)) * 2), rounds)
    return Case(
        "V1",
        "Private FedRep: the clip divides twice (ψ = 0.1)",
        claim,
        delta,
        moved(shift, 0 * shift, level),
        moved(mended, 0 * mended, 2 * psi * math.sqrt(rounds) / mu_of(claim, delta)),
        exact=epsilon_of(np.linalg.norm(shift) / level, delta),
    )


def half_sensitivity(claim: float = 4.0, delta: float = 1e-6, factor: float = 2.0, id: str = "V2") -> Case:
    """V2 and V3: sensitivity ψ for a statistic whose sign can flip; V3 also drops the 2 under the root."""
    inside, outside = pair_statistic(np.array([1.0, 1.0])), pair_statistic(np.array([1.0, -1.0]))
    level = math.sqrt(factor * math.log(1.25 / delta)) / claim
    return Case(
        id,
        "Private FedRep: ψ where 2ψ is reached" + ("" if id == "V2" else ", appendix's formula"),
        claim,
        delta,
        moved(inside, outside, level),
        moved(inside, outside, 2 / mu_of(claim, delta)),
        exact=epsilon_of(2 / level, delta),
    )


def conversion(claim: float = 4.0, delta: float = 1e-6) -> Case:
    """V4: conversion from zCDP by ρ + √(ρ log 1/δ), which has half of the second term."""
    log = math.log(1 / delta)
    root = (-math.sqrt(log) + math.sqrt(log + 4 * claim)) / 2
    mu = math.sqrt(2) * root
    canary = direction(4)
    return Case(
        "V4",
        "Private FedRep: conversion from zCDP",
        claim,
        delta,
        moved(canary, 0 * canary, 1 / mu),
        moved(canary, 0 * canary, 1 / mu_of(claim, delta)),
        exact=epsilon_of(mu, delta),
    )


def paid_once(claim: float = 4.0, delta: float = 1e-6, rounds: int = 5) -> Case:
    """V5: the start and the loop each spend the whole budget on the same users."""
    start = direction(4) / (math.sqrt(2 * math.log(1.25 / delta)) / claim)
    loop = np.tile(direction(4), rounds) / (math.sqrt(16 * rounds * math.log(1.25 / delta)) / claim)
    both = 2 * np.concatenate([start, loop])
    return Case(
        "V5",
        "Private FedRep: start and loop paid for once",
        claim,
        delta,
        moved(both, 0 * both, 1.0),
        moved(both, 0 * both, np.linalg.norm(both) / mu_of(claim, delta)),
        exact=epsilon_of(float(np.linalg.norm(both)), delta),
    )


# --- AMHT-LRS ---------------------------------------------------------------------------------------------------------


def restated(claim: float = 4.0, delta: float = 1e-5) -> Case:
    """M2: the σ in the proof is half of the theorem's."""
    level = math.sqrt(math.log(1 / delta) + claim) / claim
    both = np.concatenate([direction(6), direction(4)])
    return Case(
        "M2",
        "AMHT-LRS: half of the theorem's noise in its proof",
        claim,
        delta,
        moved(both, 0 * both, level),
        moved(both, 0 * both, math.sqrt(2) / mu_of(claim, delta)),
        exact=epsilon_of(math.sqrt(2) / level, delta),
    )


def ragged(claim: float = 1.0, delta: float = 1e-5, expected: int = 500, rated: int = 3070) -> Case:
    """M3: noise calibrated to m rows per user, and a user with six times as many."""
    ones = direction(5)
    level = expected / mu_of(claim, delta)
    return Case(
        "M3",
        "AMHT-LRS: more rows than the noise was made for",
        claim,
        delta,
        moved(rated * ones, 0 * ones, level),
        moved(expected * ones, 0 * ones, level),
        exact=epsilon_of(rated / level, delta),
    )


def bare_start(claim: float = 1.0, delta: float = 1e-5) -> Case:
    """M5: the method-of-moments start is published without noise."""
    others = np.diag([4.0, 2.0, 1.0])
    canary = np.outer([0.1, 0.2, 0.3], [0.1, 0.2, 0.3])
    outputs = [np.linalg.eigh(m)[1][:, -1] for m in (others + canary, others)]
    outputs[0] *= np.sign(outputs[0] @ outputs[1])
    return Case(
        "M5",
        "AMHT-LRS: the start has no noise",
        claim,
        delta,
        moved(outputs[0], outputs[1], 1e-9),
        moved(canary, 0 * canary, np.linalg.norm(canary) / mu_of(claim, delta)),
    )


def chosen_threshold(claim: float = 1.0, delta: float = 1e-5, coordinates: int = 400) -> Case:
    """M6: the clip is the largest norm in the data, so the noise level reveals the largest user."""
    nothing = np.zeros(coordinates)
    levels = np.array([3.0, 1.0]) / mu_of(claim, delta)
    return Case(
        "M6",
        "AMHT-LRS: clip read off the data",
        claim,
        delta,
        lambda rng, runs: read(nothing, nothing, levels, rng, runs),
        moved(direction(coordinates), nothing, 1 / mu_of(claim, delta)),
    )


def cases() -> list[Case]:
    """Return every flaw an audit can detect; M4, a clip that turns −0.3 into +1, ruins labels but leaks nothing."""
    return [
        one_sided_update(),
        closed_form(),
        cheap_direction(),
        realised_count(),
        neither_sensitivity(),
        local_state(),
        noise_by_state(),
        private_alignment(),
        sign_jump(),
        noiseless_end(),
        stacked_columns(),
        sampling_that_is_seen(),
        forgotten_weight(),
        symmetric_noise(),
        missing_dimension(),
        outlier(),
        noise_used_twice(),
        clip_twice(),
        half_sensitivity(),
        half_sensitivity(factor=1.0, id="V3"),
        conversion(),
        paid_once(),
        restated(),
        ragged(),
        bare_start(),
        chosen_threshold(),
    ]
