"""Private alternating minimisation (Jain et al. 2021): exact normal equations of the basis instead of its gradient.

In a round every user fits a head v to the current basis U and contributes the user's part of the least-squares problem
in U: A = vvᵀ ⊗ XᵀX/m and b = Xᵀy vᵀ/m, solved as U ← A⁻¹b. Both are released together as one vector (A/c_A, b/c_b) of
norm at most one: one weight a user on both sides of the equations, which does not bias their solution, and one event
a round (the released script of paper 003 noises b with a factor m too many and drowns A in its ridge).

Release :class:`NormalEquations`: clip 1, sensitivity 1 (zero-out), 2 (replace-one). The scales c_A and c_b are medians
from two private histograms. The statistic does not shrink as the basis improves, so neither does its noise: that is the
difference to Private FedRep.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tacitly.arrays import Array, Offsets, Rows, check_shape
from tacitly.federation.base import Federation, Query
from tacitly.heads.ridge import fit_head, fit_heads
from tacitly.linalg import denoise_spectrum, orthonormal, pack_symmetric, unpack_symmetric
from tacitly.methods.shared.direction_votes import first_basis
from tacitly.methods.shared.norm_histogram import private_clip
from tacitly.methods.shared.whitening import Whitening, user_chunks
from tacitly.privacy.calibration import Phase, Plan
from tacitly.privacy.clipping import clip_factor, safe_norm
from tacitly.privacy.guarantee import Budget, GaussianEvent


@dataclass(frozen=True)
class _User:
    """A = gram · (head headᵀ ⊗ moment) and b = right · head sideᵀ; head, moment and side have norm one."""

    head: Array
    moment: Array
    side: Array
    gram: float
    right: float
    both: float


@dataclass(frozen=True)
class NormalEquations(Query):
    """One user's normal equations of the basis; ``parts`` chooses which of the two to contribute."""

    basis: Array  # whitened coordinates
    whitening: Whitening
    gram_scale: float = 1.0
    right_scale: float = 1.0
    parts: str = "both"

    def __post_init__(self) -> None:
        check_shape("basis", self.basis, self.whitening.scale.size, None)
        if self.parts not in ("gram", "right", "both"):
            raise ValueError(f"parts must be 'gram', 'right' or 'both'. Found {self.parts!r}.")

    @property
    def coordinates(self) -> int:
        """Entries of the dk×dk symmetric matrix and of the d×k one, or of one of them."""
        size = self.basis.size
        return {"gram": size * (size + 1) // 2, "right": size, "both": size * (size + 3) // 2}[self.parts]

    def contribution(self, X: Rows, y: Rows) -> Array:
        """Return (A/c_A, b/c_b)."""
        whitened, targets = self.whitening.transform_own(X), y.astype(np.float64)
        user = self._user(whitened, targets, fit_head(whitened, targets, self.basis)[:-1])
        if user is None:
            return np.zeros(self.coordinates)
        gram = user.gram * np.kron(np.outer(user.head, user.head), user.moment)
        packed = {"gram": [pack_symmetric(gram)], "right": [user.right * np.outer(user.head, user.side).ravel()]}
        packed["both"] = packed["gram"] + packed["right"]
        return np.concatenate(packed[self.parts])

    def norms(self, X: Rows, y: Rows, offsets: Offsets) -> Array:
        """‖vvᵀ ⊗ S‖ = ‖v‖²‖S‖ and ‖v ⊗ b‖ = ‖v‖‖b‖: no Kronecker product."""
        return np.array([0.0 if user is None else getattr(user, self.parts) for user in self._users(X, y, offsets)])

    def block_sum(self, X: Rows, y: Rows, offsets: Offsets, bound: float) -> Array:
        """Σ (vvᵀ) ⊗ XᵀX as one matrix product over chunks of users: no Kronecker product a user."""
        if self.parts != "both":
            return super().block_sum(X, y, offsets, bound)
        d, k = self.basis.shape
        gram_sum, right_sum = np.zeros((k * k, d * d)), np.zeros((k, d))
        for mine, targets, starts in user_chunks(X, y, offsets):
            outers, moments = np.zeros((len(starts) - 1, k * k)), np.zeros((len(starts) - 1, d * d))
            for place, user in enumerate(self._users(mine, targets, starts)):
                weight = 0.0 if user is None else clip_factor(user.both, bound)
                if user is not None and weight > 0.0:
                    outers[place] = weight * user.gram * np.outer(user.head, user.head).ravel()
                    moments[place] = user.moment.ravel()
                    right_sum += weight * user.right * np.outer(user.head, user.side)
            gram_sum += outers.T @ moments
        whole = gram_sum.reshape(k, k, d, d).transpose(0, 2, 1, 3).reshape(k * d, k * d)
        return np.concatenate([pack_symmetric(whole), right_sum.ravel()])

    def _users(self, X: Rows, y: Rows, offsets: Offsets) -> Iterator[_User | None]:
        """Each user's factors; several users at a time, compiled."""
        whitened, targets = self.whitening.transform(X), y.astype(np.float64)
        heads = fit_heads(whitened, targets, offsets, self.basis)[:, :-1]
        for i, (first, last) in enumerate(itertools.pairwise(offsets)):
            yield self._user(whitened[first:last], targets[first:last], heads[i])

    def _user(self, rows: Array, targets: Array, head: Array) -> _User | None:
        """One user's factors, of norm one, and how large their products are; None where there are none."""
        count = len(rows)
        if count <= self.basis.shape[1]:
            return None
        head, size = _unit(head)
        moment, spread = _unit(rows.T @ rows)
        side, pull = _unit(rows.T @ targets)
        gram = size * size * (spread / (count * self.gram_scale))
        right = size * (pull / (count * self.right_scale))
        both = math.hypot(gram, right)
        return _User(head, moment, side, gram, right, both) if math.isfinite(both) else None

    def solve(self, released: Array, sigma: float) -> Array:
        """Return the basis the noisy equations ask for."""
        d, k = self.basis.shape
        size = d * k
        gram = unpack_symmetric(released[: size * (size + 1) // 2], size) * self.gram_scale
        right = released[size * (size + 1) // 2 :] * self.right_scale
        solution = solve_equations(gram, right, sigma * self.gram_scale, k)
        return orthonormal(solution.reshape(k, d).T)[0]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How the budget is divided."""

    rounds: int = 2
    whitening_share: float = 0.1
    start_share: float = 0.3
    clip_share: float = 0.05

    def plan(self, budget: Budget) -> Plan:
        """Divide a budget accordingly."""
        rest = 1.0 - self.whitening_share - self.start_share - self.clip_share
        return Plan(
            budget,
            [
                Phase(name="whitening", share=self.whitening_share),
                Phase(name="start", share=self.start_share),
                Phase(name="clips", share=self.clip_share, releases=2),
                Phase(name="rounds", share=rest, releases=self.rounds),
            ],
        )

    def events(self, plan: Plan) -> list[GaussianEvent]:
        """Every release the algorithm will make."""
        acute = [plan.event(name, clip=1.0, acute=True) for name in ("whitening", "start", "clips", "clips")]
        return acute + [plan.event("rounds", clip=1.0)] * self.rounds


def learn(federation: Federation, plan: Plan, settings: Settings, rank: int) -> Array:
    """Learn a shared basis of ``rank`` columns; return it orthonormal, in raw feature coordinates."""
    whitening, basis, _ = first_basis(federation, plan, rank)
    event = plan.event("clips", clip=1.0, acute=True)
    gram = private_clip(federation, NormalEquations(basis, whitening, parts="gram"), event, "gram norms")
    right = private_clip(federation, NormalEquations(basis, whitening, parts="right"), event, "right-hand norms")
    event = plan.event("rounds", clip=1.0)
    for number in range(settings.rounds):
        # √2 on both scales: at the median of each, the joint norm is one.
        query = NormalEquations(basis, whitening, math.sqrt(2.0) * gram, math.sqrt(2.0) * right)
        released = federation.release(query, event, f"normal equations {number + 1}")
        basis = query.solve(released, federation.sum_sigma(event))
    return orthonormal(whitening.to_raw(basis))[0]


def solve_equations(gram: Array, right: Array, noise: float, rank: int) -> Array:
    """Solve noisy normal equations of a basis in whitened coordinates; ``noise`` is that of the matrix's entries.

    With whitened features the matrix is close to H ⊗ I, H the heads' second moment, which is seen d times over; what
    deviates from it is believed as far as it stands out of the noise. Eigenvalues are floored at the noise's level.
    """
    size = len(gram)
    d = size // rank
    plain = np.kron(np.einsum("adbd->ab", gram.reshape(rank, d, rank, d)) / d, np.eye(d))
    values, vectors = np.linalg.eigh(gram - plain)
    believed = plain + (vectors * denoise_spectrum(values, noise * math.sqrt(size / 2.0))) @ vectors.T
    values, vectors = np.linalg.eigh(believed)
    values = np.maximum(values, max(noise, 1e-3 * float(values[-1]), np.finfo(float).tiny))
    return np.asarray(vectors @ ((vectors.T @ right) / values))


def _unit(array: Array) -> tuple[Array, float]:
    """Return an array scaled to norm one, and its norm; zeros stay zeros."""
    norm, largest = safe_norm(array)
    if not (math.isfinite(norm) and norm > 0.0):
        return np.zeros_like(array), 0.0 if norm == 0.0 else math.nan
    scaled = array / largest
    return scaled / np.linalg.norm(scaled), norm
