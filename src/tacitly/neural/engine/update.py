"""The user's part of a neural round: fit the head, take steps on the body, return the change.

Algorithm 2 of CENTAUR (Shen et al. 2023) for one user with rows (x, y): with the body fixed, take steps on a head that
starts from the public one, or, with ``warm``, from the user's own head after the previous round
(:mod:`tacitly.neural.engine.home`); then, with the head fixed, take ``local_steps`` steps on the body's trainable
parameters; return the difference. Everything is a pure function of one user's rows, that user's own state and public
values. So ``torch.func.vmap`` can run it for many users at once, and a plain loop for one user after another.

Momentum belongs to the user and to one round: velocities start at zero in every round and are discarded at its end, as
in the authors' code. Weight decay pulls towards zero; it is part of the gradient, so it is clipped with the rest.

The objective is in :mod:`tacitly.neural.engine.user_loss`, the settings are in
:mod:`tacitly.neural.engine.local_training`.
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
from tacitly.neural.engine.flat import Flat, Parts, flatten
from tacitly.neural.engine.gradient_steps import autograd_gradient, decayed, foreach_step, vmap_step
from tacitly.neural.engine.layer_hooks import LayerHooks, parameter_name
from tacitly.neural.engine.layers import custom_layers
from tacitly.neural.engine.local_training import LocalTraining
from tacitly.neural.engine.mlp_steps import MLPSteps
from tacitly.neural.engine.user_loss import UserLoss

_EVEN, _ODD = slice(0, None, 2), slice(1, None, 2)


@dataclass(frozen=True, kw_only=True)
class UserUpdate:
    """The change of the shared parameters that one user proposes."""

    body: Flat
    head: Flat
    training: LocalTraining
    # The shared parameters: "body" (CENTAUR); "both", body and head (federated averaging); or "sum", body and head,
    # with a personal head that is added to the shared one (two heads).
    shared: str = "body"
    classes: int = 1
    pull: float = 0.0  # penalty that pulls the local model towards the public one (mean regularisation)
    _gradient: Any = field(default=grad, repr=False)
    _step: Any = field(default_factory=lambda: vmap_step, repr=False)
    _hooks: LayerHooks | None = field(default=None, repr=False)
    _mlp_steps: MLPSteps | None = field(default=None, repr=False)

    @property
    def move_head(self) -> bool:
        """Whether the head is shared too."""
        return self.shared != "body"

    @property
    def size(self) -> int:
        """Length of an update."""
        return self.body.size + (self.head.size if self.move_head else 0)

    def alone(self) -> UserUpdate:
        """Return the same update on copies of the modules with ordinary autograd, for one user at a time."""
        body, head = self.body.alone(), self.head.alone()
        return replace(self, body=body, head=head, _gradient=autograd_gradient, _step=foreach_step)

    def alone_in_place(self) -> UserUpdate:
        """Return :meth:`alone` with steps on linear layers applied in place, without materialising their gradients.

        This is the plain :meth:`alone` if there are custom layers, which could observe the difference, if the head is
        shared too, if steps have momentum or decay, or if a subclass defines another update.
        """
        alone, plain = self.alone(), not (self.training.local_momentum or self.training.local_decay)
        custom = custom_layers(self.body.module, self.head.module)
        if type(self) is not UserUpdate or self.move_head or not plain or custom:
            return alone
        hooks = LayerHooks(alone.body.module, list(alone.body.shapes))
        return replace(alone, _hooks=hooks, _mlp_steps=MLPSteps.of(alone.body.module, alone.head.module))

    @property
    def own_start(self) -> Tensor:
        """The public initial state of users who have no state yet. Empty if users keep no state between rounds."""
        if not self.training.warm or (self.shared == "both" and not self.pull):
            return self.head.start.new_zeros(0)
        if self.shared == "both":
            return torch.cat([self.body.start, self.head.start])
        if self.shared == "sum":
            return torch.zeros_like(self.head.start)
        return self.head.start.repeat(2 if self._crosses else 1)

    def head_in(self, own: Tensor, public_head: Tensor) -> Tensor:
        """Return the head in a user's state: the mean of two cross-fitted heads, if there are two."""
        if self.shared == "both":
            return own[self.body.size :]
        if self.shared == "sum":
            return public_head.to(own) + own
        return own.view(-1, self.head.size).mean(0)

    @property
    def _loss(self) -> UserLoss:
        return UserLoss(self.training.loss, self.classes)

    def _held(self, goals: Tensor) -> Tensor | None:
        return self._loss.held_classes(goals, by_value=self._gradient is autograd_gradient)

    @property
    def _crosses(self) -> bool:
        return self.training.cross_fit and self.training.head_steps > 0

    def __call__(self, public: Tensor, rows: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """Return the update, before clipping, of a user without state."""
        return self.with_state(public, rows, targets, weights, self.own_start.clone())[0]

    def with_state(
        self, public: Tensor, rows: Tensor, targets: Tensor, weights: Tensor, own: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the update before clipping, and the user's state after the round.

        ``public`` is the current body (and head, if that is shared too); ``own`` is the state that the user starts from
        (:attr:`own_start`).
        """
        self.body.reset_buffers()
        self.head.reset_buffers()
        if self._hooks is not None:
            self._hooks.clear()
        body, head = public[: self.body.size], public[self.body.size :]
        if self.shared == "both":
            local = own if len(own) else public
            moved = self._whole_network_steps(public, local, torch.zeros_like(head), rows, targets, weights)
            return moved, own + moved if len(own) else own
        if self.shared == "sum":
            personal = self.fitted_head(body, head + own if len(own) else head, rows, targets, weights) - head
            return self._whole_network_steps(public, public, personal, rows, targets, weights), personal[: len(own)]
        # A copy: a custom layer that writes into it must not change the next user's initial state.
        starts = torch.split((own if len(own) else self.head.start.repeat(2)).clone(), self.head.size)
        if not self._crosses:
            fitted = self.fitted_head(body, starts[0], rows, targets, weights)
            return self._body_steps(body, fitted, rows, targets, weights), fitted[: len(own)]
        # Algorithm 4's two subsets: on the rows that a head was fitted to, the body has little left to learn.
        moved, ends = torch.zeros_like(body), []
        for mine, other, start in ((_EVEN, _ODD, starts[0]), (_ODD, _EVEN, starts[1])):
            fitted = self.fitted_head(body, start, rows[mine], targets[mine], weights[mine])
            moved = moved + self._body_steps(body, fitted, rows[other], targets[other], weights[other])
            ends.append(fitted)
        return moved, torch.cat(ends)[: len(own)]

    def fitted_head(self, body: Tensor, head: Tensor, rows: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """Return the head after phase 1: steps from ``head``, with the body fixed."""
        if self.training.head_steps == 0:
            return head
        with torch.no_grad():
            features = self.body(body, rows)
            if self.training.augment is not None:
                features = torch.cat([features, self.body(body, self.training.augment(rows))])
        if (views := len(features) // max(1, len(targets))) > 1:
            targets, weights = targets.repeat(views), weights.repeat(views)
        return self._head_steps(head, features, targets, weights)

    def _head_steps(self, head: Tensor, features: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        goals = self._loss.goals(targets, weights)
        loss = self._loss.mean(goals, weights, self._held(goals))
        gradient = self._gradient(lambda parts: loss(self.head.apply(parts, features)))
        parts = self.head.parts(head)
        velocities = tuple(torch.zeros_like(part) for part in parts)
        for _ in range(self.training.head_steps):
            gradients = decayed(gradient(parts), parts, self.training.head_decay)
            velocities = tuple(
                torch.add(g, v, alpha=self.training.head_momentum) for v, g in zip(velocities, gradients, strict=True)
            )
            parts = self._step(parts, velocities, self.training.head_rate)
        return flatten(parts)

    def _body_steps(self, body: Tensor, head: Tensor, rows: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """Return the change of the body after phases 2 and 3: steps on the body with the head fixed."""
        if self._hooks is not None:
            return self._steps_in_place(self._hooks, body, head, rows, targets, weights)
        head_parts = self.head.parts(head)

        def objective(parts: Parts, x: Tensor, loss: Callable[[Tensor], Tensor]) -> Tensor:
            return loss(self.head.apply(head_parts, self.body.apply(parts, x)))

        return self._local_steps(objective, self.body.parts(body), rows, self._loss.goals(targets, weights), weights)

    def _local_steps(
        self,
        objective: Callable[[Parts, Tensor, Callable[[Tensor], Tensor]], Tensor],
        start: Parts,
        rows: Tensor,
        goals: Tensor,
        weights: Tensor,
    ) -> Tensor:
        """Return the change of parameters after gradient steps on ``objective(parameters, rows, loss)``."""
        moved, held = start, self._held(goals)
        velocities: Parts = ()
        for x, y, w in self._batches(rows, goals, weights):
            loss = self._loss.mean(y, w, held)
            gradient = self._gradient(lambda parts, x=x, loss=loss: objective(parts, x, loss))
            steps = decayed(gradient(moved), moved, self.training.local_decay)
            if self.training.local_momentum:
                before = velocities or tuple(torch.zeros_like(part) for part in steps)
                alpha = self.training.local_momentum
                steps = velocities = tuple(torch.add(g, v, alpha=alpha) for v, g in zip(before, steps, strict=True))
            moved = self._step(moved, steps, self.training.local_rate)
        return flatten(after - before for after, before in zip(moved, start, strict=True))

    def _steps_in_place(
        self, hooks: LayerHooks, body: Tensor, head: Tensor, rows: Tensor, targets: Tensor, weights: Tensor
    ) -> Tensor:
        """Do the same in place: the gradient gᵀa of a layer's weights is added to the weights as it is multiplied."""
        vector, head_parts, goals = body.clone(), self.head.parts(head), self._loss.goals(targets, weights)
        rate, held = self.training.local_rate, self._held(goals)
        moved = dict(zip(self.body.shapes, self.body.parts(vector), strict=True))
        if self._mlp_steps is not None:
            with torch.no_grad():
                for x, y, w in self._batches(rows, goals, weights):
                    self._mlp_steps.step(moved, head_parts, x, self._loss.gradient(y, w, held), rate)
            return vector - body
        rest = [value.requires_grad_(True) for name, value in moved.items() if name not in hooks.names]
        for x, y, w in self._batches(rows, goals, weights):
            with torch.enable_grad():
                value = self._loss.mean(y, w, held)(
                    self.head.apply(head_parts, self.body.apply(tuple(moved.values()), x))
                )
                recorded = [(layer, *calls[0]) for layer, calls in hooks.take().items()]
                wanted = [*(output for _, _, output in recorded), *rest]
                gradients = torch.autograd.grad(value, wanted, allow_unused=True, materialize_grads=True)
            with torch.no_grad():
                for (layer, given, _), gradient in zip(recorded, gradients, strict=False):
                    if gradient.ndim > 2:
                        gradient, given = gradient.flatten(0, -2), given.flatten(0, -2)
                    if (weight := moved.get(parameter_name(layer, "weight"))) is not None:
                        weight.addmm_(gradient.mT, given, alpha=-rate)
                    if (bias := moved.get(parameter_name(layer, "bias"))) is not None:
                        bias.add_(gradient.sum(0), alpha=-rate)
                for part, gradient in zip(rest, gradients[len(recorded) :], strict=True):
                    part.add_(gradient, alpha=-rate)
        return vector - body

    def _whole_network_steps(
        self, public: Tensor, local: Tensor, personal: Tensor, rows: Tensor, targets: Tensor, weights: Tensor
    ) -> Tensor:
        """Return the change of body and head after steps on both from ``local``, with a fixed ``personal`` head added.

        A pull is towards ``public``.
        """
        cut, added = len(self.body.shapes), self.head.parts(personal)
        start, centre = (
            (*self.body.parts(vector[: self.body.size]), *self.head.parts(vector[self.body.size :]))
            for vector in (local, public)
        )

        def objective(parts: Parts, x: Tensor, loss: Callable[[Tensor], Tensor]) -> Tensor:
            head = [shared + mine for shared, mine in zip(parts[cut:], added, strict=True)]
            value = loss(self.head.apply(head, self.body.apply(parts[:cut], x)))
            if self.pull:
                for part, origin in zip(parts, centre, strict=True):
                    value = value + 0.5 * self.pull * (part - origin).square().sum()
            return value

        return self._local_steps(objective, start, rows, self._loss.goals(targets, weights), weights)

    def feature_gradients(
        self, public_head: Tensor, features: Tensor, targets: Tensor, weights: Tensor, own: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the gradients of the single step's loss in every row's features, and in the head where it is shared.

        With one local step, an update is minus ``local_rate`` times these gradients carried back through the body. The
        third result is the user's state after the round, as in :meth:`with_state`.
        """
        given = features, targets, weights
        if self.shared == "both":
            return *self._feature_gradients(public_head, *given), own
        if self.shared == "sum":
            fitted = self._fitted_on_features(public_head + own if len(own) else public_head, *given)
            return *self._feature_gradients(fitted, *given), (fitted - public_head)[: len(own)]
        starts = torch.split((own if len(own) else self.head.start.repeat(2)).clone(), self.head.size)
        if not self._crosses:
            fitted = self._fitted_on_features(starts[0], *given)
            return *self._feature_gradients(fitted, *given), fitted[: len(own)]
        row_gradients, ends = torch.zeros_like(features), []
        for mine, other, start in ((_EVEN, _ODD, starts[0]), (_ODD, _EVEN, starts[1])):
            fitted = self._head_steps(start, features[mine], targets[mine], weights[mine])
            row_gradients[other] = self._feature_gradients(fitted, features[other], targets[other], weights[other])[0]
            ends.append(fitted)
        return row_gradients, row_gradients.new_zeros(0), torch.cat(ends)[: len(own)]

    def _fitted_on_features(self, head: Tensor, features: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        return self._head_steps(head, features, targets, weights) if self.training.head_steps else head

    def _feature_gradients(
        self, head: Tensor, features: Tensor, targets: Tensor, weights: Tensor
    ) -> tuple[Tensor, Tensor]:
        goals, head_parts = self._loss.goals(targets, weights), self.head.parts(head)
        held = self._held(goals)

        def objective(parts: Parts) -> Tensor:
            ((x, y, w),) = self._batches(parts[0], goals, weights)
            return self._loss.mean(y, w, held)(self.head.apply(parts[1:] or head_parts, x))

        row_gradients, *rest = self._gradient(objective)((features, *(head_parts if self.move_head else ())))
        return row_gradients, flatten(rest) if rest else row_gradients.new_zeros(0)

    def _batches(self, rows: Tensor, goals: Tensor, weights: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield the rows of every step: the next batch in turn, or all rows if they fit into one batch."""
        size = self.training.batch_rows
        if size is None or size >= len(rows):
            for _ in range(self.training.local_steps):
                yield rows, goals, weights
            return
        steps, places = (torch.arange(n, device=rows.device) for n in (self.training.local_steps, size))
        count = weights.sum().long()
        # Spread over all rows, because they may be sorted by class.
        apart = torch.div(count + size - 1, size, rounding_mode="floor")
        chosen = torch.where(count <= size, places, (places * apart + steps[:, None]) % count.clamp_min(1))
        if chosen.numel() <= 2 * len(rows):  # one call for all steps if that needs little memory
            yield from zip(rows[chosen], goals[chosen], weights[chosen], strict=True)
            return
        for mine in chosen:
            yield rows[mine], goals[mine], weights[mine]


def public_start(update: UserUpdate) -> Array:
    """Return the public vector that rounds start from: the body's parameters, and the head's if it is shared too."""
    parts = [update.body.start, update.head.start] if update.move_head else [update.body.start]
    return np.asarray(torch.cat(parts).cpu().numpy(), dtype=np.float64)
