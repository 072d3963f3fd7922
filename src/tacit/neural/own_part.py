"""The user's half of paper 004's frameworks for networks: fit one's own part, say how the shared one should move.

A user's network is a function of a public vector and of a part of one's own:

* :class:`SparseUpdate`: θ = U w + b with at most k entries in b. Fixed w = 1 and k = 0 is a single model, and k = all
  of them full fine-tuning; k = 0 is representation learning.
* :class:`PromptUpdate`: one network whose rows are followed by an embedding c. Behind the first layer c is only seen as
  V c, added to that layer's levels, so that is how it is computed.

The own part is fitted by gradient steps with momentum, b by keeping the k largest candidates after every step
(iterative hard thresholding). Step lengths come from the user's own rows (one over the stiffness), so there is no rate
to choose. The own part is pulled to the public start by ``penalty`` over the number of rows, as one would a priori.

The answer is minus the gradient of the user's mean loss in the public vector, (−∇L) wᵀ for U: a function of one user's
rows and public numbers. Fit and gradient see different halves of the rows, for an own part explains the rows it was
fitted to too well, and both halves take turns. Rows of weight 0 are padding.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from tacit.neural.tanh_network import TanhNetwork
from tacit.neural.update import Flat, UserUpdate


def _no_module() -> Flat:
    return Flat(nn.Identity())


@dataclass(frozen=True, kw_only=True)
class OwnPartUpdate(UserUpdate):
    """What the two frameworks have in common. ``training`` gives rows a round, steps and momentum; all is public."""

    network: TanhNetwork
    penalty: float = 1.0
    # There are no modules in it; the executor brings these to its device.
    body: Flat = field(default_factory=_no_module, repr=False)
    head: Flat = field(default_factory=_no_module, repr=False)

    def alone(self) -> OwnPartUpdate:
        """Return this: nothing in it changes, so threads may share it."""
        return self

    def __call__(self, public: Tensor, rows: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """Return the way the public vector should go, before the clip; in float32, whose squares float64 can hold."""
        public, rows, targets, weights = (part.double() for part in (public, rows, targets, weights))
        halves = [(rows[first::2], targets[first::2], weights[first::2]) for first in (0, 1)]
        if not self.training.cross_fit or not self.own_size:
            own = self.fitted(public, rows, targets, weights)
            return self._pull(public, own, rows, targets, weights).float()
        answer = torch.zeros_like(public)
        for mine, other in (halves, halves[::-1]):
            answer = answer + self._pull(public, self.fitted(public, *mine), *other)
        return answer.float()

    def fitted(
        self, public: Tensor, rows: Tensor, targets: Tensor, weights: Tensor, *, steps: int | None = None
    ) -> Tensor:
        """Return the own part that these rows ask for."""
        own = begin = self.first(public)
        if not self.own_size:
            return own
        speed, reach = torch.zeros_like(own), self.reach(public)
        prior = self.penalty / weights.sum().clamp_min(1.0)
        for _ in range(self.training.head_steps if steps is None else steps):
            slope, stiffness = self.network.slope(self.whole(public, own), rows, targets, weights)
            length = self.training.head_rate / (stiffness + prior)
            pull = self.own_slope(reach, slope) + prior * (own - begin)
            speed = self.training.head_momentum * speed + pull
            own = self.kept(own - length * speed)
        return own

    def _pull(self, public: Tensor, own: Tensor, rows: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        slope, _ = self.network.slope(self.whole(public, own), rows, targets, weights)
        return -self.public_slope(own, slope)

    @property
    @abstractmethod
    def own_size(self) -> int:
        """Numbers that a user fits; 0 where everything is shared."""

    @abstractmethod
    def first(self, public: Tensor) -> Tensor:
        """Own part of a user of whom nothing is known."""

    @abstractmethod
    def whole(self, public: Tensor, own: Tensor) -> Tensor:
        """Return the parameters of a user's network."""

    @abstractmethod
    def reach(self, public: Tensor) -> Tensor:
        """Return the matrix that turns a gradient in the network's parameters into one in the own part.

        Scaled so that the network then moves no further than the gradient would move it.
        """

    @abstractmethod
    def own_slope(self, reach: Tensor, slope: Tensor) -> Tensor:
        """Turn a gradient in the network's parameters into one in the own part."""

    @abstractmethod
    def public_slope(self, own: Tensor, slope: Tensor) -> Tensor:
        """Turn a gradient in the network's parameters into one in the public vector."""

    def kept(self, own: Tensor) -> Tensor:
        """Return what an own part may hold."""
        return own


@dataclass(frozen=True, kw_only=True)
class SparseUpdate(OwnPartUpdate):
    """θ = U w + b. The public vector is U, row by row; the own part is w, then b with all its zeros."""

    rank: int = 1
    sparsity: int = 0
    shared_weight: bool = False

    @property
    def size(self) -> int:
        """Numbers in U."""
        return self.network.size * self.rank

    @property
    def own_size(self) -> int:
        """Numbers in w and b that are free."""
        return (0 if self.shared_weight else self.rank) + self.sparsity

    def first(self, public: Tensor) -> Tensor:
        """Return w = (1, 0, …), b = 0: the first column is a network, the others are directions to leave it by."""
        one = torch.zeros(self.rank + self.network.size, dtype=public.dtype, device=public.device)
        return torch.cat([torch.ones_like(one[:1]), one[1:]])

    def whole(self, public: Tensor, own: Tensor) -> Tensor:
        """Return U w + b."""
        return public.view(-1, self.rank) @ own[: self.rank] + own[self.rank :]

    def reach(self, public: Tensor) -> Tensor:
        """Return (UᵀU)⁻¹ Uᵀ, or zeros where the weight is not free."""
        basis = public.view(-1, self.rank)
        return torch.zeros_like(basis.T) if self.shared_weight else torch.linalg.solve(basis.T @ basis, basis.T)

    def own_slope(self, reach: Tensor, slope: Tensor) -> Tensor:
        """Return what U can follow of a gradient for w, and all of it for b."""
        return torch.cat([reach @ slope, slope])

    def public_slope(self, own: Tensor, slope: Tensor) -> Tensor:
        """Return g wᵀ."""
        return (slope[:, None] * own[: self.rank]).reshape(-1)

    def kept(self, own: Tensor) -> Tensor:
        """Keep the k largest entries of b."""
        weights, values = own[: self.rank], own[self.rank :]
        if self.sparsity == 0:
            values = torch.zeros_like(values)
        elif self.sparsity < self.network.size:
            largest = torch.topk(values.abs(), self.sparsity).indices
            values = torch.zeros_like(values).scatter(0, largest, values.gather(0, largest))
        return torch.cat([weights, values])


@dataclass(frozen=True, kw_only=True)
class PromptUpdate(OwnPartUpdate):
    """Rows followed by an embedding c. The public vector is the network's without it, then V (units × e)."""

    embedding: int = 1

    @property
    def size(self) -> int:
        """Parameters of a network of features and embedding together."""
        return self.network.size + self.network.hidden[0] * self.embedding

    @property
    def own_size(self) -> int:
        """Length of the embedding."""
        return self.embedding

    def first(self, public: Tensor) -> Tensor:
        """Return c = 0."""
        return torch.zeros(self.embedding, dtype=public.dtype, device=public.device)

    def whole(self, public: Tensor, own: Tensor) -> Tensor:
        """Return the network's parameters with V c added to the levels of the first layer."""
        where, size = self.network.first_levels, self.network.size
        moved = public[where] + self._prompts(public) @ own
        return torch.cat([public[: where.start], moved, public[where.stop : size]])

    def reach(self, public: Tensor) -> Tensor:
        """Return Vᵀ/‖V‖² at the levels of the first layer."""
        prompts = self._prompts(public)
        scale = prompts.square().sum().clamp_min(torch.finfo(prompts.dtype).tiny)
        return prompts.T / scale

    def own_slope(self, reach: Tensor, slope: Tensor) -> Tensor:
        """Return how far the embedding should follow a gradient."""
        return reach @ slope[self.network.first_levels]

    def public_slope(self, own: Tensor, slope: Tensor) -> Tensor:
        """Return g, and (g at the levels) cᵀ for V."""
        return torch.cat([slope, (slope[self.network.first_levels][:, None] * own).reshape(-1)])

    def _prompts(self, public: Tensor) -> Tensor:
        return public[self.network.size :].view(self.network.hidden[0], self.embedding)
