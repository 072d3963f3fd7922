"""The user's half of a neural round, written once: fit the head, step the body, say how it moved.

Algorithm 2 of paper 000 for one user with rows (x, y): with the body fixed, take steps on a head that starts from the
public one; then, with the head fixed, take ``local_steps`` steps on the body's trainable parameters; answer with the
difference. Everything is a pure function of one user's rows and public numbers, so that ``torch.func.vmap`` can run it
for many users at once and a plain loop for one after the other.

Rows come with weights: 0 marks padding. Classes that a user does not hold are left out of its loss; which those are is
the user's own knowledge and stays there. Labels are whole numbers from 0; numbers outside go to the nearest class.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad

_ABSENT = -1e9  # logit of a class the user does not hold: probability zero, gradient zero, and finite

Gradient = Callable[[Callable[..., Tensor]], Callable[..., Tensor]]


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


class Flat:
    """A module as a function of one flat vector of its trainable parameters; everything else in it is public.

    >>> flat = Flat(nn.Linear(3, 2))
    >>> flat.size, flat(flat.start, torch.ones(1, 3)).shape
    (8, torch.Size([1, 2]))
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        trained = [(name, value) for name, value in module.named_parameters() if value.requires_grad]
        self.shapes = {name: value.shape for name, value in trained}
        self.start = flatten(value.detach() for _, value in trained)
        self.fixed: dict[str, Tensor] = {
            name: value.detach()
            for name, value in [*module.named_parameters(), *module.named_buffers()]
            if name not in self.shapes
        }

    @property
    def size(self) -> int:
        """Number of trainable parameters."""
        return int(self.start.numel())

    def to(self, device: torch.device) -> Flat:
        """Bring everything public to a device; the module itself is left where it is."""
        self.start = self.start.to(device)
        self.fixed = {name: value.to(device) for name, value in self.fixed.items()}
        return self

    def copy(self) -> Flat:
        """Return the same function on a copy of the module."""
        twin = copy.copy(self)
        twin.module = copy.deepcopy(self.module)
        return twin

    def named(self, vector: Tensor) -> dict[str, Tensor]:
        """Return the parameters that a flat vector stands for."""
        sizes = [math.prod(shape) for shape in self.shapes.values()]
        parts = torch.split(vector, sizes) if sizes else ()
        return {name: part.view(shape) for (name, shape), part in zip(self.shapes.items(), parts, strict=True)}

    def __call__(self, vector: Tensor, rows: Tensor) -> Tensor:
        """Apply the module with these parameters."""
        result: Tensor = functional_call(self.module, {**self.fixed, **self.named(vector)}, (rows,))
        return result


def flatten(values: Iterable[Tensor]) -> Tensor:
    """One vector of all values, in float32."""
    parts = [value.reshape(-1).float() for value in values]
    return torch.cat(parts) if parts else torch.zeros(0)


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
        return replace(self, body=self.body.copy(), head=self.head.copy(), _gradient=plain_gradient)

    def __call__(self, public: Tensor, rows: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """Return the update, before the clip; ``public`` is the current body (and head, where that is shared too)."""
        body, head = public[: self.body.size], public[self.body.size :]
        if self.shared == "both":
            return self._both(public, torch.zeros_like(head), rows, targets, weights) - public
        if self.shared == "sum":
            own = self.fitted_head(body, head, rows, targets, weights) - head
            return self._both(public, own, rows, targets, weights) - public
        head = self.head.start
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
        features = self.body(body, rows).detach()
        if self.training.augment is not None:
            features = torch.cat([features, self.body(body, self.training.augment(rows)).detach()])
            targets, weights = torch.cat([targets, targets]), torch.cat([weights, weights])
        present = self.present(targets, weights)
        slope = self._gradient(lambda h: self.loss(self.head(h, features), targets, weights, present))
        speed = torch.zeros_like(head)
        for _ in range(self.training.head_steps):
            speed = self.training.head_momentum * speed + slope(head)
            head = head - self.training.head_rate * speed
        return head

    def _body_steps(self, body: Tensor, head: Tensor, rows: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """Phases 2 and 3: steps on the body with the head fixed; the way it went."""
        moved, own = body, self.present(targets, weights)
        for step in range(self.training.local_steps):
            x, y, w = self._batch(step, rows, targets, weights)
            slope = self._gradient(lambda b, x=x, y=y, w=w: self.loss(self.head(head, self.body(b, x)), y, w, own))
            moved = moved - self.training.local_rate * slope(moved)
        return moved - body

    def _both(self, public: Tensor, own: Tensor, rows: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """Local training of the whole network, a fixed head of the user's ``own`` added to the shared one."""
        cut, moved, present = self.body.size, public, self.present(targets, weights)
        for step in range(self.training.local_steps):
            x, y, w = self._batch(step, rows, targets, weights)
            slope = self._gradient(
                lambda v, x=x, y=y, w=w: (
                    self.loss(self.head(v[cut:] + own, self.body(v[:cut], x)), y, w, present)
                    + 0.5 * self.pull * (v - public).square().sum()
                )
            )
            moved = moved - self.training.local_rate * slope(moved)
        return moved

    def _batch(self, step: int, rows: Tensor, targets: Tensor, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the rows of a step: the next in turn, or all of them if they are no more than a batch."""
        size = self.training.batch_rows
        if size is None or size >= len(rows):
            return rows, targets, weights
        places = torch.arange(size, device=rows.device)
        count = weights.sum().long()
        # Spread over all rows, because they may come sorted by class.
        apart = torch.div(count + size - 1, size, rounding_mode="floor")
        chosen = torch.where(count <= size, places, (places * apart + step) % count.clamp_min(1))
        return rows[chosen], targets[chosen], weights[chosen]

    def present(self, targets: Tensor, weights: Tensor) -> Tensor:
        """Which classes the user holds; nothing where numbers are predicted."""
        if self.training.loss == "squares":
            return weights
        return (self._indicators(targets) * weights[:, None]).amax(0) > 0

    def loss(self, output: Tensor, targets: Tensor, weights: Tensor, present: Tensor) -> Tensor:
        """Mean loss of some of a user's rows, over the classes that the user holds."""
        count = weights.sum().clamp_min(1.0)
        if self.training.loss == "squares":
            return 0.5 * ((output.squeeze(-1) - targets).square() * weights).sum() / count
        scores = torch.where(present, output, torch.full_like(output, _ABSENT))
        return -((torch.log_softmax(scores, -1) * self._indicators(targets)).sum(-1) * weights).sum() / count

    def _indicators(self, targets: Tensor) -> Tensor:
        classes = torch.arange(self.classes, device=targets.device)
        return (labels(targets, self.classes)[:, None] == classes).to(targets.dtype)


def labels(targets: Tensor, classes: int) -> Tensor:
    """Class numbers from numbers: the nearest one there is."""
    return torch.nan_to_num(targets).round().clamp(0, classes - 1).long()


def plain_gradient(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Gradient by the ordinary tape: for one user at a time it is quicker than ``torch.func.grad``."""

    def slope(at: Tensor) -> Tensor:
        with torch.enable_grad():
            point = at.detach().requires_grad_(True)
            (result,) = torch.autograd.grad(function(point), point)
        return result

    return slope
