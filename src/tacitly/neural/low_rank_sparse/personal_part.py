"""The user's part of the AMHT-LRS frameworks for networks: fit the personal part, return a gradient for the shared one.

A user's network is a function of a public vector and of that user's personal part:

* :class:`SparseUpdate`: θ = U w + b with at most k non-zero entries in b. With w fixed to 1, k = 0 is a single model
  and k = all parameters is full fine-tuning; with w free, k = 0 is representation learning.
* :class:`PromptUpdate`: one network whose rows are followed by an embedding c. After the first layer c appears only as
  V c, which is added to that layer's biases; it is computed in this way.

The personal part is fitted by conjugate gradients. Each step has the length that the linearised network suggests
(Gauss–Newton), and is cut to a quarter if it raised the loss. So there is no learning rate, and the fit does not depend
on how few of the parameters are free. The support of b is selected four times, growing by a quarter each time, and then
twice more, by how much each entry's own optimum would lower the loss; earlier entries may be dropped (hard
thresholding, at the scale of each entry). The personal part starts at zero and is pulled towards it by ``penalty`` over
the number of rows.

A user with few rows would overfit. So the part is fitted to half of the rows, and the loss on the other half decides
after how many steps to stop, possibly before the first: a personal part that does not help on held-out rows is zero,
and that user has the shared network. At the end the held-out half also decides by which factor b is multiplied. The
entries of b were selected because they are large on the fitted rows, so they are too large for other rows; the held-out
half had no part in the selection and can measure this. All of this happens locally, from that user's rows only.

The update is minus the gradient of the user's mean loss in the public vector, (−∇L) wᵀ for U: a function of one user's
rows and public values. Fit and gradient use different halves of the rows, and the halves take turns. Rows of weight 0
are padding. On a CPU compiled code takes the same steps (:mod:`tacitly.neural.low_rank_sparse.kernels`).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor, nn

from tacitly.arrays import Array, Offsets, Rows
from tacitly.neural.engine.flat import Flat
from tacitly.neural.engine.update import UserUpdate
from tacitly.neural.low_rank_sparse.kernels import cross_fitted, early_stopped
from tacitly.neural.low_rank_sparse.network import Network
from tacitly.neural.low_rank_sparse.tanh_network import TanhNetwork

_SUPPORT_SHARES = (0.25, 0.5, 0.75, 1.0, 1.0, 1.0)  # shares of b's support, selected after every eighth of the steps
_BACKTRACK = 0.25  # factor for a step that raised the loss
SHRINKAGES: tuple[float, ...] = (1.0, 0.75, 0.5, 0.25, 0.0)  # factors of b; held-out rows choose one of them
_TINY = torch.finfo(torch.float64).tiny


def _no_module() -> Flat:
    return Flat(nn.Identity())


@dataclass(frozen=True, kw_only=True)
class PersonalPartUpdate(UserUpdate):
    """Base class of the two frameworks. ``training`` gives rows and steps per round; everything is public."""

    network: Network
    penalty: float = 1.0
    # Placeholders without parameters, for the executor to move to its device.
    body: Flat = field(default_factory=_no_module, repr=False)
    head: Flat = field(default_factory=_no_module, repr=False)

    def alone(self) -> PersonalPartUpdate:
        """Return this update itself: it has no state, so threads may share it."""
        return self

    def __call__(self, public: Tensor, rows: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """Return minus the gradient in the public vector before clipping, in float32: float64 holds its squares."""
        public, *mine = (part.double() for part in (public, rows, targets, weights))
        if not self.personal_size:
            return self._descent(public, self.start(public), *mine).float()
        if not self.training.cross_fit:
            return self._descent(public, self.fitted(public, *mine), *mine).float()
        update = torch.zeros_like(public)
        for half, other in _halves(*mine):
            steps = list(self.path(public, *half, steps=self.training.head_steps))
            personal = _at(steps, torch.argmin(self.losses(public, steps, *other)))
            update = update + self._descent(public, personal, *other)
        return update.float()

    def with_state(
        self, public: Tensor, rows: Tensor, targets: Tensor, weights: Tensor, own: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the update; users keep no state between rounds."""
        return self(public, rows, targets, weights), own

    def fitted(self, public: Tensor, rows: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """Return the personal part fitted to these rows, after all steps."""
        *_, personal = self.path(public, rows, targets, weights, steps=self.training.head_steps)
        return personal

    def early_stopped(self, public: Tensor, rows: Tensor, targets: Tensor, weights: Tensor, *, steps: int) -> Tensor:
        """Return the personal part after the number of steps that helps most on held-out rows, possibly none.

        The number of steps and the factor of sparse values minimise the loss of each half's fit on the other half; then
        these steps are taken on all rows.
        """
        if not self.personal_size:
            return self.start(public)
        shrinkages = self.shrinkages
        total = torch.zeros((steps + 1) * len(shrinkages), dtype=public.dtype, device=public.device)
        for half, other in _halves(rows, targets, weights):
            path = [
                factor * personal
                for personal in self.path(public, *half, steps=steps)
                for factor in self._factors(public)
            ]
            total = total + other[2].sum() * self.losses(public, path, *other)
        path = list(self.path(public, rows, targets, weights, steps=steps))
        best = torch.argmin(total)
        return _at(path, best // len(shrinkages)) * _at(list(self._factors(public)), best % len(shrinkages))

    def losses(self, public: Tensor, parts: list[Tensor], rows: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """Return the mean loss of several personal parts; infinity instead of NaN."""
        outputs = [self.network(self.parameters(public, personal), rows) for personal in parts]
        found = [self.network.loss(each, targets, weights) for each in outputs]
        return torch.stack(found).nan_to_num(nan=torch.inf)

    def path(self, public: Tensor, rows: Tensor, targets: Tensor, weights: Tensor, *, steps: int) -> Iterator[Tensor]:
        """Yield the best personal part so far, before the first step and after each step of conjugate gradients."""
        trial = best = move = direction = gradient = self.start(public)
        network_gradient = torch.zeros(self.network.size, dtype=public.dtype, device=public.device)
        growth = _growth(steps)
        (reach, metric), support = self.preconditioner(public), torch.ones_like(trial)
        prior = self.penalty / weights.sum().clamp_min(1.0)
        lowest = torch.full_like(prior, torch.inf)
        for step in range(steps + 1):
            passed = self.network.forward(self.parameters(public, trial), rows)
            trial_gradient, loss = self.network.gradient(passed, targets, weights)
            loss = loss + 0.5 * prior * _inner(metric, trial, trial)
            better = loss < lowest
            best, lowest = torch.where(better, trial, best), torch.where(better, loss, lowest)
            yield best
            if step == steps:
                return
            network_gradient = torch.where(better, trial_gradient, network_gradient)
            if step in growth and self.selects_support:
                before, curvature = support, self.network.curvature(passed, weights)
                support = self.support(best, network_gradient, curvature, prior, growth[step])
                best, move = support * best, support * move
                direction = torch.where((support == before).all(), direction, 0.0)  # was conjugate for the old support
                lowest = torch.full_like(lowest, torch.inf)
            new_gradient = support * torch.addcmul(self.personal_gradient(reach, network_gradient), best, prior)
            # Polak–Ribière, restarted if the direction does not descend.
            beta = _inner(metric, new_gradient, new_gradient - gradient)
            beta = beta / _inner(metric, gradient, gradient).clamp_min(_TINY)
            new_direction = torch.addcmul(-new_gradient, direction, beta.clamp_min(0.0))
            descent = -_inner(metric, new_direction, new_gradient)
            new_direction = torch.where(descent > 0.0, new_direction, -new_gradient)
            descent = -_inner(metric, new_direction, new_gradient)
            changes = self.network.jvp(passed, self.shift(public, new_direction))
            along = self.network.bend(passed, changes, weights) + prior * _inner(metric, new_direction, new_direction)
            move = torch.where(better, new_direction * (descent / along.clamp_min(_TINY)), _BACKTRACK * move)
            direction = torch.where(better, new_direction, direction)
            gradient = torch.where(better, new_gradient, gradient)
            trial = best + move

    def _descent(self, public: Tensor, personal: Tensor, rows: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        passed = self.network.forward(self.parameters(public, personal), rows)
        return -self.public_gradient(personal, self.network.gradient(passed, targets, weights)[0])

    def output_change(self, public: Tensor, direction: Tensor, rows: Tensor) -> Tensor:
        """Return how much outputs change (root mean square) along a direction of the public vector, on public rows."""
        passed = self.network.forward(self.parameters(public, self.start(public)), rows)
        changes = [self.network.jvp(passed, part) for part in self.public_shifts(direction)]
        return torch.stack(changes).square().sum(0).mean().sqrt()

    @property
    def shrinkages(self) -> tuple[float, ...]:
        """Factors of the sparse entries of a personal part to choose among; the first is one."""
        return (1.0,)

    def _factors(self, public: Tensor) -> list[Tensor]:
        """Return each shrinkage as a factor for every entry of a personal part: one for dense entries."""
        sparse = torch.ones_like(self.start(public))
        sparse[: self.dense_length] = 0.0
        return [1.0 - (1.0 - factor) * sparse for factor in self.shrinkages]

    @property
    def dense_length(self) -> int:
        """Number of dense entries of a personal part, which come first."""
        return self.personal_length

    @property
    @abstractmethod
    def personal_size(self) -> int:
        """Number of free personal parameters; 0 if everything is shared."""

    @property
    @abstractmethod
    def personal_length(self) -> int:
        """Length of a personal part, including entries that are not free."""

    def start(self, public: Tensor) -> Tensor:
        """Return the personal part of a user without rows: zeros."""
        return torch.zeros(self.personal_length, dtype=public.dtype, device=public.device)

    def parameters(self, public: Tensor, personal: Tensor) -> Tensor:
        """Return the parameters of a user's network."""
        return self.shared_parameters(public) + self.shift(public, personal)

    @abstractmethod
    def shared_parameters(self, public: Tensor) -> Tensor:
        """Return the parameters of the network of a user without a personal part."""

    @abstractmethod
    def shift(self, public: Tensor, personal: Tensor) -> Tensor:
        """Return the change of the shared parameters by a personal part; it is linear in the part."""

    @abstractmethod
    def public_shifts(self, direction: Tensor) -> list[Tensor]:
        """Return the changes by a move of the public vector, for each entry of a personal part that is one."""

    @abstractmethod
    def preconditioner(self, public: Tensor) -> tuple[Tensor, Tensor]:
        """Return the preconditioner of the dense entries of a personal part, and their metric.

        The first matrix turns a gradient in the network's parameters into a step of those entries, scaled so that the
        network moves no further than the gradient itself would move it; the second is the matching inner product.
        """

    @abstractmethod
    def personal_gradient(self, reach: Tensor, gradient: Tensor) -> Tensor:
        """Turn a gradient in the network's parameters into a preconditioned one in the personal part."""

    @abstractmethod
    def public_gradient(self, personal: Tensor, gradient: Tensor) -> Tensor:
        """Turn a gradient in the network's parameters into one in the public vector."""

    @property
    def selects_support(self) -> bool:
        """Whether the free entries of a personal part must be selected."""
        return False

    def support(self, personal: Tensor, gradient: Tensor, curvature: Tensor, prior: Tensor, share: float) -> Tensor:
        """Return 1 for free entries of a personal part and 0 elsewhere: all ones if there is nothing to select."""
        return torch.ones_like(personal)


@dataclass(frozen=True, kw_only=True)
class SparseUpdate(PersonalPartUpdate):
    """θ = U w + b. The public vector is U, row by row; the personal part is w − (1, 0, …), then b with its zeros."""

    rank: int = 1
    sparsity: int = 0
    shared_weight: bool = False
    compiled: bool = False

    def alone_in_place(self) -> SparseUpdate:
        """Return the update for one user at a time, on a CPU: compiled if the network has tanh units."""
        return replace(self, compiled=self.compiles)

    @property
    def compiles(self) -> bool:
        """Whether there are compiled kernels for this network."""
        return isinstance(self.network, TanhNetwork)

    def __call__(self, public: Tensor, rows: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """Return minus the gradient in U before clipping, in float32."""
        if not self.compiled or public.device.type != "cpu":
            return super().__call__(public, rows, targets, weights)
        known, mine = self._known(public), (part.double().numpy() for part in (rows, targets, weights))
        growth, halves = self._growth(self.training.head_steps), self.training.cross_fit
        update = cross_fitted(*known, *mine, self.penalty, growth, self.personal_size, self.sparsity, halves)
        return torch.as_tensor(update.reshape(-1)).float()

    def early_stopped_parts(self, public: Tensor, X: Rows, y: Rows, offsets: Offsets, *, steps: int) -> Tensor:
        """Return :meth:`early_stopped` of these users, one row each, compiled."""
        out = np.zeros((len(offsets) - 1, self.personal_length))
        rows = slice(offsets[0], offsets[-1])
        mine = (np.array(part[rows], dtype=np.float64) for part in (X, y))  # one type, so that it is compiled only once
        if self.personal_size:
            growth, bounds = self._growth(steps), np.array(offsets - offsets[0])
            factors = np.array(self.shrinkages)
            early_stopped(*self._known(public), *mine, bounds, self.penalty, growth, self.sparsity, factors, out)
        return torch.as_tensor(out)

    def _known(self, public: Tensor) -> tuple[Array, ...]:
        """Return the public values: U, the preconditioner, its metric, and the shapes of layers."""
        assert isinstance(self.network, TanhNetwork)
        reach, metric = self.preconditioner(public.double())
        basis = public.double().view(-1, self.rank)
        arrays = (np.ascontiguousarray(part.numpy()) for part in (basis, reach, metric))
        return *arrays, np.array(self.network.shapes, dtype=np.int64)

    def _growth(self, steps: int) -> Array:
        """Return the share of the support that is selected before each step; 0 for no selection."""
        found = _growth(steps) if self.selects_support else {}
        return np.array([found.get(step, 0.0) for step in range(steps)])

    @property
    def shrinkages(self) -> tuple[float, ...]:
        """Possible factors of b."""
        return SHRINKAGES if self.sparsity else (1.0,)

    @property
    def dense_length(self) -> int:
        """Number of entries of w."""
        return self.rank

    @property
    def size(self) -> int:
        """Number of entries of U."""
        return self.network.size * self.rank

    @property
    def personal_size(self) -> int:
        """Number of free entries of w and b."""
        return (0 if self.shared_weight else self.rank) + self.sparsity

    @property
    def personal_length(self) -> int:
        """Length of w and of b with its zeros."""
        return self.rank + self.network.size

    def weights(self, personal: Tensor) -> Tensor:
        """Return w, which is (1, 0, …) for a user without rows.

        The first column of U is a network, the others are directions away from it.
        """
        return torch.cat([personal[:1] + 1.0, personal[1 : self.rank]])

    def shared_parameters(self, public: Tensor) -> Tensor:
        """Return U's first column."""
        return public.view(-1, self.rank)[:, 0]

    def shift(self, public: Tensor, personal: Tensor) -> Tensor:
        """Return U (w − (1, 0, …)) + b."""
        return public.view(-1, self.rank) @ personal[: self.rank] + personal[self.rank :]

    def public_shifts(self, direction: Tensor) -> list[Tensor]:
        """Return the columns."""
        return list(direction.view(-1, self.rank).T)

    def preconditioner(self, public: Tensor) -> tuple[Tensor, Tensor]:
        """Return (UᵀU)⁻¹ Uᵀ, or zeros if the weight is not free; and UᵀU."""
        basis = public.view(-1, self.rank)
        products = basis.T @ basis
        reach = torch.zeros_like(basis.T) if self.shared_weight else torch.linalg.solve(products, basis.T)
        return reach, products

    def personal_gradient(self, reach: Tensor, gradient: Tensor) -> Tensor:
        """Return the gradient projected onto U for w, and the whole gradient for b."""
        return torch.cat([reach @ gradient, gradient])

    def public_gradient(self, personal: Tensor, gradient: Tensor) -> Tensor:
        """Return g wᵀ."""
        return (gradient[:, None] * self.weights(personal)).reshape(-1)

    @property
    def selects_support(self) -> bool:
        """Whether b may have only some non-zero entries."""
        return self.sparsity < self.network.size

    def support(self, personal: Tensor, gradient: Tensor, curvature: Tensor, prior: Tensor, share: float) -> Tensor:
        """Keep the entries of b whose optimum, each separately, would lower the loss most."""
        values, curvature = personal[self.rank :], curvature + prior
        gain = (values - (gradient + prior * values) / curvature).abs() * curvature.sqrt()
        largest = torch.topk(torch.nan_to_num(gain), math.ceil(share * self.sparsity)).indices
        entries = torch.zeros_like(gain).scatter(0, largest, torch.ones_like(gain))
        return torch.cat([torch.ones_like(personal[: self.rank]), entries])


@dataclass(frozen=True, kw_only=True)
class PromptUpdate(PersonalPartUpdate):
    """Rows followed by an embedding c. The public vector is the network's without it, then V (units × e)."""

    network: TanhNetwork
    embedding: int = 1

    @property
    def size(self) -> int:
        """Number of parameters of a network on features and embedding together."""
        return self.network.size + self.network.hidden[0] * self.embedding

    @property
    def personal_size(self) -> int:
        """Length of the embedding."""
        return self.embedding

    @property
    def personal_length(self) -> int:
        """Length of the embedding, all of it free."""
        return self.embedding

    def shared_parameters(self, public: Tensor) -> Tensor:
        """Return the network's parameters."""
        return public[: self.network.size]

    def shift(self, public: Tensor, personal: Tensor) -> Tensor:
        """Return V c at the biases of the first layer."""
        return self._at_biases(self._prompts(public) @ personal)

    def public_shifts(self, direction: Tensor) -> list[Tensor]:
        """Return the network's parameters, and V's columns at the biases."""
        columns = self._prompts(direction).T
        return [self.shared_parameters(direction), *(self._at_biases(column) for column in columns)]

    def preconditioner(self, public: Tensor) -> tuple[Tensor, Tensor]:
        """Return Vᵀ/‖V‖², and ‖V‖² times the identity."""
        prompts = self._prompts(public)
        scale = prompts.square().sum().clamp_min(_TINY)
        return prompts.T / scale, scale * torch.eye(self.embedding, dtype=public.dtype, device=public.device)

    def personal_gradient(self, reach: Tensor, gradient: Tensor) -> Tensor:
        """Return the preconditioned gradient in the embedding."""
        return reach @ gradient[self.network.first_biases]

    def public_gradient(self, personal: Tensor, gradient: Tensor) -> Tensor:
        """Return g, and (g at the biases) cᵀ for V."""
        return torch.cat([gradient, (gradient[self.network.first_biases][:, None] * personal).reshape(-1)])

    def _at_biases(self, biases: Tensor) -> Tensor:
        where = self.network.first_biases
        return nn.functional.pad(biases, (where.start, self.network.size - where.stop))

    def _prompts(self, public: Tensor) -> Tensor:
        return public[self.network.size :].view(self.network.hidden[0], self.embedding)


def _growth(steps: int) -> dict[int, float]:
    """Return the steps before which the support is selected, and its share then.

    It is not changed in the last quarter of the steps, so that the last selection is fitted too.
    """
    return {steps * stage // 8: share for stage, share in enumerate(_SUPPORT_SHARES)}


def _inner(metric: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """Return the inner product of two personal parts by their effect on the network (dense entries come first)."""
    dense = len(metric)
    return left[:dense] @ metric @ right[:dense] + (left[dense:] * right[dense:]).sum()


def _halves(*mine: Tensor) -> list[tuple[list[Tensor], list[Tensor]]]:
    """Return both ways to pair the even rows with the odd rows."""
    even, odd = ([part[first::2] for part in mine] for first in (0, 1))
    return [(even, odd), (odd, even)]


def _at(path: list[Tensor], step: Tensor) -> Tensor:
    """Return the personal part after a user's number of steps."""
    return torch.stack(path).index_select(0, step[None]).squeeze(0)
