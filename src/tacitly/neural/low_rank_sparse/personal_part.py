"""The user's half of paper 004's frameworks for networks: fit one's own part, say how the shared one should move.

A user's network is a function of a public vector and of a part of one's own:

* :class:`SparseUpdate`: θ = U w + b with at most k entries in b. Fixed w = 1 and k = 0 is a single model, and k = all
  of them full fine-tuning; k = 0 is representation learning.
* :class:`PromptUpdate`: one network whose rows are followed by an embedding c. Behind the first layer c is only seen as
  V c, added to that layer's levels, so that is how it is computed.

The own part is fitted by conjugate gradients, each step as long as the linearised network asks for (Gauss–Newton), a
quarter of it where that raised the loss: no rate to choose, and it does not matter how few of the parameters are free.
Which entries b has is decided four times, a quarter more of them each time, and twice again, by what each entry's own
optimum would lower the loss by; earlier ones may be given up (hard thresholding, at the scale of each entry). The own
part begins at zero, and is pulled there by ``penalty`` over the number of rows.

A user with few rows explains them too well. So half of the rows are fitted and the other half says after how many steps
to stop, perhaps before the first: an own part that helps nobody's other rows is none, and that user has what everybody
has. All of this is at home, from one user's rows.

The answer is minus the gradient of the user's mean loss in the public vector, (−∇L) wᵀ for U: a function of one user's
rows and public numbers. Fit and gradient see different halves of the rows, and both halves take turns. Rows of weight 0
are padding.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from tacitly.neural.engine.update import Flat, UserUpdate
from tacitly.neural.low_rank_sparse.tanh_network import TanhNetwork, half_mean_square

_SHARES = (0.25, 0.5, 0.75, 1.0, 1.0, 1.0)  # of a user's entries, whenever an eighth of the steps is done
_BACK = 0.25  # of a move that raised the loss, tried next
_TINY = torch.finfo(torch.float64).tiny


def _no_module() -> Flat:
    return Flat(nn.Identity())


@dataclass(frozen=True, kw_only=True)
class OwnPartUpdate(UserUpdate):
    """What the two frameworks have in common. ``training`` gives rows a round and steps; all is public."""

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
        public, *mine = (part.double() for part in (public, rows, targets, weights))
        if not self.own_size:
            return self._pull(public, self.first(public), *mine).float()
        if not self.training.cross_fit:
            return self._pull(public, self.fitted(public, *mine), *mine).float()
        answer = torch.zeros_like(public)
        for half, other in _halves(*mine):
            steps = list(self.path(public, *half, steps=self.training.head_steps))
            own = _at(steps, torch.argmin(self.losses(public, steps, *other)))
            answer = answer + self._pull(public, own, *other)
        return answer.float()

    def fitted(self, public: Tensor, rows: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """Return the own part that these rows ask for, after all steps."""
        *_, own = self.path(public, rows, targets, weights, steps=self.training.head_steps)
        return own

    def held_back(self, public: Tensor, rows: Tensor, targets: Tensor, weights: Tensor, *, steps: int) -> Tensor:
        """Return the own part after as many steps as help on rows that were not fitted: perhaps after none.

        The number of steps that suits each half's fit on the other half, taken with all rows.
        """
        if not self.own_size:
            return self.first(public)
        total = torch.zeros(steps + 1, dtype=public.dtype, device=public.device)
        for half, other in _halves(rows, targets, weights):
            path = list(self.path(public, *half, steps=steps))
            total = total + other[2].sum() * self.losses(public, path, *other)
        return _at(list(self.path(public, rows, targets, weights, steps=steps)), torch.argmin(total))

    def losses(self, public: Tensor, owns: list[Tensor], rows: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """Return half the mean squared error of several own parts; no number is no use."""
        lefts = [self.network(self.whole(public, own), rows) - targets for own in owns]
        return torch.stack([half_mean_square(left, weights) for left in lefts]).nan_to_num(nan=torch.inf)

    def path(self, public: Tensor, rows: Tensor, targets: Tensor, weights: Tensor, *, steps: int) -> Iterator[Tensor]:
        """Yield the own part before the first step, and after each: conjugate gradients, as long as the loss falls."""
        own = at = move = direction = pull = self.first(public)
        slope = torch.zeros(self.network.size, dtype=public.dtype, device=public.device)
        # When entries are chosen: not in the last quarter, so that what was chosen last is fitted too.
        growth = {steps * stage // 8: share for stage, share in enumerate(_SHARES)}
        (reach, measure), kept = self.lens(public), torch.ones_like(own)
        prior = self.penalty / weights.sum().clamp_min(1.0)
        lowest = torch.full_like(prior, torch.inf)
        for step in range(steps + 1):
            seen = self.network.forward(self.whole(public, own), rows)
            new_slope, loss = self.network.slope(seen, targets, weights)
            loss = loss + 0.5 * prior * _inner(measure, own, own)
            better = loss < lowest
            at, lowest = torch.where(better, own, at), torch.where(better, loss, lowest)
            yield at
            if step == steps:
                return
            slope = torch.where(better, new_slope, slope)
            if step in growth and self.chooses:
                before, kept = kept, self.chosen(at, slope, self.network.curvature(seen, weights), prior, growth[step])
                at, move = kept * at, kept * move
                direction = torch.where((kept == before).all(), direction, 0.0)  # was conjugate for other entries
                lowest = torch.full_like(lowest, torch.inf)
            new_pull = kept * torch.addcmul(self.own_slope(reach, slope), at, prior)
            turn = _inner(measure, new_pull, new_pull - pull) / _inner(measure, pull, pull).clamp_min(_TINY)
            onward = torch.addcmul(-new_pull, direction, turn.clamp_min(0.0))
            falls = -_inner(measure, onward, new_pull)
            onward = torch.where(falls > 0.0, onward, -new_pull)
            falls = -_inner(measure, onward, new_pull)
            changes = self.network.push(seen, self.displaced(public, onward))
            bends = 2.0 * half_mean_square(changes, weights) + prior * _inner(measure, onward, onward)
            move = torch.where(better, onward * (falls / bends.clamp_min(_TINY)), _BACK * move)
            direction, pull = torch.where(better, onward, direction), torch.where(better, new_pull, pull)
            own = at + move

    def _pull(self, public: Tensor, own: Tensor, rows: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        slope, _ = self.network.slope(self.network.forward(self.whole(public, own), rows), targets, weights)
        return -self.public_slope(own, slope)

    def reaction(self, public: Tensor, direction: Tensor, rows: Tensor) -> Tensor:
        """Return how much outputs change (root mean square) if the public vector moves that way; for public rows."""
        seen = self.network.forward(self.whole(public, self.first(public)), rows)
        changes = [self.network.push(seen, part) for part in self.displacements(direction)]
        return torch.stack(changes).square().sum(0).mean().sqrt()

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

    def whole(self, public: Tensor, own: Tensor) -> Tensor:
        """Return the parameters of a user's network."""
        return self.everybodys(public) + self.displaced(public, own)

    @abstractmethod
    def everybodys(self, public: Tensor) -> Tensor:
        """Return the parameters of the network that users begin from."""

    @abstractmethod
    def displaced(self, public: Tensor, own: Tensor) -> Tensor:
        """Return what an own part adds to them; linear in it."""

    @abstractmethod
    def displacements(self, direction: Tensor) -> list[Tensor]:
        """Return what a move of the public vector adds, by each number of an own part that is one."""

    @abstractmethod
    def lens(self, public: Tensor) -> tuple[Tensor, Tensor]:
        """Return how an own part's dense numbers see the network's parameters, and how long they are there.

        A matrix that turns a gradient in the network's parameters into a step of those numbers, scaled so that the
        network then moves no further than the gradient would move it; and the matrix of inner products that belongs to
        it.
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

    def everybodys(self, public: Tensor) -> Tensor:
        """Return U's first column."""
        return public.view(-1, self.rank)[:, 0]

    def displaced(self, public: Tensor, own: Tensor) -> Tensor:
        """Return U (w − (1, 0, …)) + b."""
        return public.view(-1, self.rank) @ own[: self.rank] + own[self.rank :]

    def displacements(self, direction: Tensor) -> list[Tensor]:
        """Return the columns."""
        return list(direction.view(-1, self.rank).T)

    def lens(self, public: Tensor) -> tuple[Tensor, Tensor]:
        """Return (UᵀU)⁻¹ Uᵀ, or zeros where the weight is not free; and UᵀU."""
        basis = public.view(-1, self.rank)
        products = basis.T @ basis
        reach = torch.zeros_like(basis.T) if self.shared_weight else torch.linalg.solve(products, basis.T)
        return reach, products

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

    def everybodys(self, public: Tensor) -> Tensor:
        """Return the network's parameters."""
        return public[: self.network.size]

    def displaced(self, public: Tensor, own: Tensor) -> Tensor:
        """Return V c at the levels of the first layer."""
        return self._at_levels(self._prompts(public) @ own)

    def displacements(self, direction: Tensor) -> list[Tensor]:
        """Return the network's, and V's columns at the levels."""
        return [self.everybodys(direction), *(self._at_levels(column) for column in self._prompts(direction).T)]

    def lens(self, public: Tensor) -> tuple[Tensor, Tensor]:
        """Return Vᵀ/‖V‖², and ‖V‖² for every number."""
        prompts = self._prompts(public)
        scale = prompts.square().sum().clamp_min(_TINY)
        return prompts.T / scale, scale * torch.eye(self.embedding, dtype=public.dtype, device=public.device)

    def own_slope(self, reach: Tensor, slope: Tensor) -> Tensor:
        """Return how far the embedding should follow a gradient."""
        return reach @ slope[self.network.first_levels]

    def public_slope(self, own: Tensor, slope: Tensor) -> Tensor:
        """Return g, and (g at the levels) cᵀ for V."""
        return torch.cat([slope, (slope[self.network.first_levels][:, None] * own).reshape(-1)])

    def _at_levels(self, levels: Tensor) -> Tensor:
        where = self.network.first_levels
        return nn.functional.pad(levels, (where.start, self.network.size - where.stop))

    def _prompts(self, public: Tensor) -> Tensor:
        return public[self.network.size :].view(self.network.hidden[0], self.embedding)


def _inner(measure: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """Return the inner product of two own parts by what they do to the network: dense numbers, then sparse ones."""
    dense = len(measure)
    return left[:dense] @ measure @ right[:dense] + (left[dense:] * right[dense:]).sum()


def _halves(*mine: Tensor) -> list[tuple[list[Tensor], list[Tensor]]]:
    """Return every other row and the rest, and the rest and every other row."""
    even, odd = ([part[first::2] for part in mine] for first in (0, 1))
    return [(even, odd), (odd, even)]


def _at(path: list[Tensor], step: Tensor) -> Tensor:
    """Return the own part after a user's own number of steps."""
    return torch.stack(path).index_select(0, step[None]).squeeze(0)
