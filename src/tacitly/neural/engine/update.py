"""The user's half of a neural round, written once: fit the head, step the body, say how it moved.

Algorithm 2 of paper 000 for one user with rows (x, y): with the body fixed, take steps on a head that starts from the
public one; then, with the head fixed, take ``local_steps`` steps on the body's trainable parameters; answer with the
difference. Everything is a pure function of one user's rows and public numbers, so that ``torch.func.vmap`` can run it
for many users at once and a plain loop for one after the other.

Rows come with weights: 0 marks padding. Classes that a user does not hold are left out of its loss; which those are is
the user's own knowledge and stays there. Labels are whole numbers from 0; numbers outside go to the nearest class.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import grad

from tacitly.arrays import Array
from tacitly.neural.engine.chains import Chain
from tacitly.neural.engine.flat import Flat as Flat
from tacitly.neural.engine.flat import Parts, flatten
from tacitly.neural.engine.layer_hooks import Taps, parameter_of
from tacitly.neural.engine.layers import own_kinds

_ABSENT = -1e9  # logit of a class the user does not hold: probability zero, gradient zero, and finite


@dataclass(frozen=True, kw_only=True)
class LocalTraining:
    """What every user does in a round. Public.

    ``augment`` turns a user's rows into other rows of the same shape (a mirror, a shift); heads are then fitted on
    both. ``cross_fit``: the body's steps see a head that was fitted to the other half of the rows, and so for both
    halves. ``rows`` is how many rows a user brings to a round; who has more brings other ones in the next.
    """

    local_steps: int = 1
    local_rate: float = 0.1
    batch_rows: int | None = None
    head_steps: int = 15
    head_rate: float = 0.1
    head_momentum: float = 0.9
    cross_fit: bool = True
    rows: int = 128
    loss: str = "classes"
    augment: Callable[[Tensor], Tensor] | None = None

    def __post_init__(self) -> None:
        if self.local_steps < 1:
            raise ValueError(f"local_steps must be at least 1. Found {self.local_steps!r}.")
        if self.head_steps < 0:
            raise ValueError(f"head_steps must not be negative. Found {self.head_steps!r}.")
        if self.rows < 1:
            raise ValueError(f"rows must be at least 1. Found {self.rows!r}.")
        if self.loss not in ("classes", "squares"):
            raise ValueError(f"loss must be 'classes' or 'squares'. Found {self.loss!r}.")


@dataclass(frozen=True, kw_only=True)
class UserUpdate:
    """How one user's rows ask the body to move."""

    body: Flat
    head: Flat
    training: LocalTraining
    # What is shared: the body alone (CENTAUR); body and head (federated averaging); or body and head, with a head of
    # the user's own added to it (two heads).
    shared: str = "body"
    classes: int = 1
    pull: float = 0.0  # of the local model towards the public one, for the baseline that has it
    _gradient: Any = field(default=grad, repr=False)
    _move: Any = field(default_factory=lambda: together, repr=False)
    _taps: Taps | None = field(default=None, repr=False)
    _chain: Chain | None = field(default=None, repr=False)

    @property
    def move_head(self) -> bool:
        """Whether the head is shared too."""
        return self.shared != "body"

    @property
    def size(self) -> int:
        """Length of the answer."""
        return self.body.size + (self.head.size if self.move_head else 0)

    def alone(self) -> UserUpdate:
        """Return the same update on copies of the modules and the ordinary tape: for one user at a time."""
        return replace(self, body=self.body.alone(), head=self.head.alone(), _gradient=plain_gradient, _move=at_once)

    def quick(self) -> UserUpdate:
        """Return the same as :meth:`alone`; steps on linear layers are taken without writing their slopes down.

        Not where layers of the user's own could see it, the head is shared too, or an update is of another kind.
        """
        mine = self.alone()
        if type(self) is not UserUpdate or self.move_head or own_kinds(self.body.module, self.head.module):
            return mine
        chain = Chain.of(mine.body.module, mine.head.module)
        return replace(mine, _taps=Taps(mine.body.module, list(mine.body.shapes)), _chain=chain)

    def __call__(self, public: Tensor, rows: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """Return the update, before the clip; ``public`` is the current body (and head, where that is shared too)."""
        self.body.refresh()
        self.head.refresh()
        if self._taps is not None:
            self._taps.forget()
        body, head = public[: self.body.size], public[self.body.size :]
        if self.shared == "both":
            return self._both(public, torch.zeros_like(head), rows, targets, weights)
        if self.shared == "sum":
            own = self.fitted_head(body, head, rows, targets, weights) - head
            return self._both(public, own, rows, targets, weights)
        head = self.head.start.clone()  # nobody's layers get hold of what the next user begins from
        if not self.training.cross_fit or self.training.head_steps == 0:
            return self._body_steps(body, self.fitted_head(body, head, rows, targets, weights), rows, targets, weights)
        # Algorithm 4's two subsets: a head says nothing of the rows it was fitted to.
        moved = torch.zeros_like(body)
        for mine, other in ((slice(0, None, 2), slice(1, None, 2)), (slice(1, None, 2), slice(0, None, 2))):
            fitted = self.fitted_head(body, head, rows[mine], targets[mine], weights[mine])
            moved = moved + self._body_steps(body, fitted, rows[other], targets[other], weights[other])
        return moved

    def fitted_head(self, body: Tensor, head: Tensor, rows: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """Phase 1: steps on the head, from the public one, with the body fixed."""
        if self.training.head_steps == 0:
            return head
        with torch.no_grad():
            features = self.body(body, rows)
            if self.training.augment is not None:
                features = torch.cat([features, self.body(body, self.training.augment(rows))])
        if len(features) > len(targets):
            targets, weights = torch.cat([targets, targets]), torch.cat([weights, weights])
        return self._head_steps(head, features, targets, weights)

    def _head_steps(self, head: Tensor, features: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        goals = self.goals(targets, weights)
        loss = self.loss(goals, weights, self.present(goals))
        slope = self._gradient(lambda parts: loss(self.head.at(parts, features)))
        parts = self.head.parts(head)
        speeds = tuple(torch.zeros_like(part) for part in parts)
        for _ in range(self.training.head_steps):
            slopes = slope(parts)
            speeds = tuple(
                torch.add(g, v, alpha=self.training.head_momentum) for v, g in zip(speeds, slopes, strict=True)
            )
            parts = self._move(parts, speeds, self.training.head_rate)
        return flatten(parts)

    def _body_steps(self, body: Tensor, head: Tensor, rows: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """Phases 2 and 3: steps on the body with the head fixed; the way it went."""
        if self._taps is not None:
            return self._steps_in_place(self._taps, body, head, rows, targets, weights)
        start, own, goals = self.body.parts(body), self.head.parts(head), self.goals(targets, weights)
        moved, present = start, self.present(goals)
        for x, y, w in self._batches(rows, goals, weights):
            loss = self.loss(y, w, present)
            slope = self._gradient(lambda parts, x=x, loss=loss: loss(self.head.at(own, self.body.at(parts, x))))
            moved = self._move(moved, slope(moved), self.training.local_rate)
        return flatten(after - before for after, before in zip(moved, start, strict=True))

    def _steps_in_place(
        self, taps: Taps, body: Tensor, head: Tensor, rows: Tensor, targets: Tensor, weights: Tensor
    ) -> Tensor:
        """Do the same in one place: a slope gᵀa of a layer's weights goes into them as it is multiplied out."""
        place, own, goals = body.clone(), self.head.parts(head), self.goals(targets, weights)
        rate, present = self.training.local_rate, self.present(goals)
        moved = dict(zip(self.body.shapes, self.body.parts(place), strict=True))
        if self._chain is not None:
            with torch.no_grad():
                for x, y, w in self._batches(rows, goals, weights):
                    self._chain.step(moved, own, x, self.output_slope(y, w, present), rate)
            return place - body
        rest = [value.requires_grad_(True) for name, value in moved.items() if name not in taps.names]
        for x, y, w in self._batches(rows, goals, weights):
            with torch.enable_grad():
                value = self.loss(y, w, present)(self.head.at(own, self.body.at(tuple(moved.values()), x)))
                seen = [(layer, *calls[0]) for layer, calls in taps.take().items()]
                wanted = [*(output for _, _, output in seen), *rest]
                slopes = torch.autograd.grad(value, wanted, allow_unused=True, materialize_grads=True)
            with torch.no_grad():
                for (layer, given, _), slope in zip(seen, slopes, strict=False):
                    if slope.ndim > 2:
                        slope, given = slope.flatten(0, -2), given.flatten(0, -2)
                    if (weight := moved.get(parameter_of(layer, "weight"))) is not None:
                        weight.addmm_(slope.mT, given, alpha=-rate)
                    if (level := moved.get(parameter_of(layer, "bias"))) is not None:
                        level.add_(slope.sum(0), alpha=-rate)
                for part, slope in zip(rest, slopes[len(seen) :], strict=True):
                    part.add_(slope, alpha=-rate)
        return place - body

    def _both(self, public: Tensor, own: Tensor, rows: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """Local training of the whole network, a fixed head of the user's ``own`` added to the shared one."""
        cut, goals = len(self.body.shapes), self.goals(targets, weights)
        start = (*self.body.parts(public[: self.body.size]), *self.head.parts(public[self.body.size :]))
        moved, added, present = start, self.head.parts(own), self.present(goals)

        def objective(parts: Parts, x: Tensor, loss: Callable[[Tensor], Tensor]) -> Tensor:
            head = [shared + mine for shared, mine in zip(parts[cut:], added, strict=True)]
            pulled = loss(self.head.at(head, self.body.at(parts[:cut], x)))
            if self.pull:
                for part, home in zip(parts, start, strict=True):
                    pulled = pulled + 0.5 * self.pull * (part - home).square().sum()
            return pulled

        for x, y, w in self._batches(rows, goals, weights):
            loss = self.loss(y, w, present)
            slope = self._gradient(lambda parts, x=x, loss=loss: objective(parts, x, loss))
            moved = self._move(moved, slope(moved), self.training.local_rate)
        return flatten(after - before for after, before in zip(moved, start, strict=True))

    def pulls(self, public_head: Tensor, features: Tensor, targets: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Return the slopes of the only step's loss in every row's features, and in the head where that is shared.

        Minus ``local_rate`` times what they say of the body is what a call answers, where there is one local step.
        """
        if self.shared == "both":
            return self._pulls(public_head, features, targets, weights)
        if self.shared == "sum":
            return self._pulls(self._fitted(public_head, features, targets, weights), features, targets, weights)
        head = self.head.start.clone()
        if not self.training.cross_fit or self.training.head_steps == 0:
            return self._pulls(self._fitted(head, features, targets, weights), features, targets, weights)
        down = torch.zeros_like(features)
        for mine, other in ((slice(0, None, 2), slice(1, None, 2)), (slice(1, None, 2), slice(0, None, 2))):
            fitted = self._head_steps(head, features[mine], targets[mine], weights[mine])
            down[other] = self._pulls(fitted, features[other], targets[other], weights[other])[0]
        return down, down.new_zeros(0)

    def _fitted(self, head: Tensor, features: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        return self._head_steps(head, features, targets, weights) if self.training.head_steps else head

    def _pulls(self, head: Tensor, features: Tensor, targets: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        goals, own = self.goals(targets, weights), self.head.parts(head)
        present = self.present(goals)

        def objective(parts: Parts) -> Tensor:
            ((x, y, w),) = self._batches(parts[0], goals, weights)
            return self.loss(y, w, present)(self.head.at(parts[1:] or own, x))

        down, *rest = self._gradient(objective)((features, *(own if self.move_head else ())))
        return down, flatten(rest) if rest else down.new_zeros(0)

    def _batches(self, rows: Tensor, goals: Tensor, weights: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield the rows of every step: the next in turn, or all of them if they are no more than a batch."""
        size = self.training.batch_rows
        if size is None or size >= len(rows):
            for _ in range(self.training.local_steps):
                yield rows, goals, weights
            return
        steps, places = (torch.arange(n, device=rows.device) for n in (self.training.local_steps, size))
        count = weights.sum().long()
        # Spread over all rows, because they may come sorted by class.
        apart = torch.div(count + size - 1, size, rounding_mode="floor")
        chosen = torch.where(count <= size, places, (places * apart + steps[:, None]) % count.clamp_min(1))
        if chosen.numel() <= 2 * len(rows):  # one call for all steps where that takes little room
            yield from zip(rows[chosen], goals[chosen], weights[chosen], strict=True)
            return
        for mine in chosen:
            yield rows[mine], goals[mine], weights[mine]

    def goals(self, targets: Tensor, weights: Tensor) -> Tensor:
        """Return what outputs should be: the numbers, or a row of indicators a label; nothing for padding."""
        if self.training.loss == "squares":
            return targets
        classes = torch.arange(self.classes, device=targets.device)
        return (labels(targets, self.classes)[:, None] == classes).to(targets.dtype) * weights[:, None]

    def present(self, goals: Tensor) -> Tensor | None:
        """Which classes the user holds; None if all of them, where one can look, and where numbers are predicted."""
        if self.training.loss == "squares":
            return None
        held = goals.amax(0) > 0
        return None if self._gradient is plain_gradient and bool(held.all()) else held

    def loss(self, goals: Tensor, weights: Tensor, present: Tensor | None) -> Callable[[Tensor], Tensor]:
        """Return the mean loss of some of a user's rows, over the classes the user holds, as a function of outputs."""
        count = weights.sum().clamp_min(1.0)
        if self.training.loss == "squares":
            shares = weights / (2.0 * count)
            return lambda output: ((output.squeeze(-1) - goals).square() * shares).sum()
        shares = goals / -count
        if present is None:
            return lambda output: (torch.log_softmax(output, -1) * shares).sum()
        return lambda output: (torch.log_softmax(torch.where(present, output, _ABSENT), -1) * shares).sum()

    def output_slope(self, goals: Tensor, weights: Tensor, present: Tensor | None) -> Callable[[Tensor], Tensor]:
        """Return the slope of :meth:`loss` in outputs."""
        shares = (weights / weights.sum().clamp_min(1.0))[:, None]
        if self.training.loss == "squares":
            return lambda output: (output - goals[:, None]) * shares
        if present is None:
            return lambda output: (torch.softmax(output, -1) - goals).mul_(shares)
        return lambda output: (torch.softmax(torch.where(present, output, _ABSENT), -1) - goals).mul_(shares)


def public_start(update: UserUpdate) -> Array:
    """Return the public vector that rounds begin from: the body's, and the head's where that is shared too."""
    parts = [update.body.start, update.head.start] if update.move_head else [update.body.start]
    return np.asarray(torch.cat(parts).cpu().numpy(), dtype=np.float64)


def labels(targets: Tensor, classes: int) -> Tensor:
    """Class numbers from numbers: the nearest one there is."""
    return torch.nan_to_num(targets).round().clamp(0, classes - 1).long()


def plain_gradient(function: Callable[[Parts], Tensor]) -> Callable[[Parts], Parts]:
    """Gradient by the ordinary tape: for one user at a time it is quicker than ``torch.func.grad``."""

    def slope(at: Parts) -> Parts:
        with torch.enable_grad():
            points = tuple(part.detach().requires_grad_(True) for part in at)
            return torch.autograd.grad(function(points), points, allow_unused=True, materialize_grads=True)

    return slope


def together(parts: Parts, slopes: Parts, rate: float) -> Parts:
    """Move parameters against their slopes, in a form that vmap knows."""
    return tuple(torch.add(part, slope, alpha=-rate) for part, slope in zip(parts, slopes, strict=True))


def at_once(parts: Parts, slopes: Parts, rate: float) -> Parts:
    """Do the same in one call, so that workers wait for each other less often."""
    return tuple(torch._foreach_add(parts, slopes, alpha=-rate))
