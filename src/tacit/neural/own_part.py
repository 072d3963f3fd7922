"""The user's half of paper 004's frameworks for networks: fit one's own part, say how the shared one should move.

A user's network is a function of a public vector and of a part of one's own:

* :class:`SparseUpdate`: θ = U w + b with at most k entries in b. Fixed w = 1 and k = 0 is a single model, and k = all
  of them full fine-tuning; k = 0 is representation learning.
* :class:`PromptUpdate`: one network whose rows are followed by an embedding c. Behind the first layer c is only seen as
  V c, added to that layer's levels, so that is how it is computed.

The own part is fitted by gradient steps with momentum. Which entries b has is decided four times, a quarter more of
them each time, by what each entry's own optimum would lower the loss by; earlier ones may be given up (hard
thresholding, at the scale of each entry). Step lengths come from the user's own rows (one over the stiffness), so there
is no rate to choose. The own part begins at zero, and is pulled there by ``penalty`` over the number of rows.

The answer is minus the gradient of the user's mean loss in the public vector, (−∇L) wᵀ for U: a function of one user's
rows and public numbers. Fit and gradient see different halves of the rows, for an own part explains the rows it was
fitted to too well, and both halves take turns. Rows of weight 0 are padding.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from tacit.neural.tanh_network import TanhNetwork
from tacit.neural.update import Flat, UserUpdate

_STAGES = 4


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
        own = self.first(public)
        if not self.own_size:
            return own
        steps = self.training.head_steps if steps is None else steps
        # When the own part may grow: in the first half, so that what was chosen last is fitted too.
        growth = {steps * stage // (2 * _STAGES): (stage + 1) / _STAGES for stage in range(_STAGES)}
        speed, reach, kept = torch.zeros_like(own), self.reach(public), torch.ones_like(own)
        prior = self.penalty / weights.sum().clamp_min(1.0)
        for step in range(steps):
            whole = self.whole(public, own)
            slope, stiffness = self.network.slope(whole, rows, targets, weights)
            if step in growth and self.chooses:
                curvature = self.network.curvature(whole, rows, weights)
                kept = self.chosen(own, slope, curvature, prior, growth[step])
                own, speed = kept * own, kept * speed
            pull = torch.addcmul(self.own_slope(reach, slope), own, prior)
            speed = kept * torch.add(pull, speed, alpha=self.training.head_momentum)
            own = torch.addcmul(own, speed, -self.training.head_rate / (stiffness + prior))
        return own

    def _pull(self, public: Tensor, own: Tensor, rows: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        slope, _ = self.network.slope(self.whole(public, own), rows, targets, weights)
        return -self.public_slope(own, slope)

    @property
    @abstractmethod
    def own_size(self) -> int:
        """Numbers that a user fits; 0 where everything is shared."""

    @property
    @abstractmethod
    def own_length(self) -> int:
        """Length of an own part, numbers that are not free counted in."""

    def first(self, public: Tensor) -> Tensor:
        """Return the own part of a user of whom nothing is known: zeros."""
        return torch.zeros(self.own_length, dtype=public.dtype, device=public.device)

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

    @property
    def chooses(self) -> bool:
        """Whether a user must choose which numbers to have."""
        return False

    def chosen(self, own: Tensor, slope: Tensor, curvature: Tensor, prior: Tensor, share: float) -> Tensor:
        """Return 1 where an own part may have numbers, and 0 elsewhere: everywhere, where nothing is to be chosen."""
        return torch.ones_like(own)


@dataclass(frozen=True, kw_only=True)
class SparseUpdate(OwnPartUpdate):
    """θ = U w + b. The public vector is U, row by row; the own part is w − (1, 0, …), then b with its zeros."""

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

    @property
    def own_length(self) -> int:
        """Of w and of b with its zeros."""
        return self.rank + self.network.size

    def weights(self, own: Tensor) -> Tensor:
        """Return w, which is (1, 0, …) of a user of whom nothing is known.

        The first column of U is a network, the others are directions to leave it by.
        """
        return torch.cat([own[:1] + 1.0, own[1 : self.rank]])

    def whole(self, public: Tensor, own: Tensor) -> Tensor:
        """Return U w + b."""
        return public.view(-1, self.rank) @ self.weights(own) + own[self.rank :]

    def reach(self, public: Tensor) -> Tensor:
        """Return (UᵀU)⁻¹ Uᵀ, or zeros where the weight is not free."""
        basis = public.view(-1, self.rank)
        return torch.zeros_like(basis.T) if self.shared_weight else torch.linalg.solve(basis.T @ basis, basis.T)

    def own_slope(self, reach: Tensor, slope: Tensor) -> Tensor:
        """Return what U can follow of a gradient for w, and all of it for b."""
        return torch.cat([reach @ slope, slope])

    def public_slope(self, own: Tensor, slope: Tensor) -> Tensor:
        """Return g wᵀ."""
        return (slope[:, None] * self.weights(own)).reshape(-1)

    @property
    def chooses(self) -> bool:
        """Unless all, or none, may be had."""
        return self.sparsity < self.network.size

    def chosen(self, own: Tensor, slope: Tensor, curvature: Tensor, prior: Tensor, share: float) -> Tensor:
        """Keep the entries of b whose best values, each by itself, would lower the loss most."""
        values, curvature = own[self.rank :], curvature + prior
        best = (values - (slope + prior * values) / curvature).abs() * curvature.sqrt()
        largest = torch.topk(torch.nan_to_num(best), math.ceil(share * self.sparsity)).indices
        entries = torch.zeros_like(best).scatter(0, largest, torch.ones_like(best))
        return torch.cat([torch.ones_like(own[: self.rank]), entries])


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

    @property
    def own_length(self) -> int:
        """Of the embedding, all of it free."""
        return self.embedding

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
