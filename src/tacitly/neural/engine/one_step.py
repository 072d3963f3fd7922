"""One local step for many users at once, without materialising any user's gradient of the body.

With a single step every user's gradient is taken at the public body, so the rows of a chunk of users pass it together:
one forward pass; then, for each user separately, a head and the gradient of the loss with respect to every row's
features; one backward pass. (On a CPU, if users may have many rows, each user's rows pass alone, so that nothing is
padded; heads are still fitted together.) Only the inputs of every linear layer and the gradients of its outputs are
needed: :mod:`tacitly.neural.engine.ghost_clipping` clips and sums them, and proves that this is sound. Memory is rows ×
width of a chunk and one or two bodies.

A row's values do not depend on other users' rows, to the last bit: only layers that process rows one by one are
accepted (:data:`tacitly.neural.engine.layer_hooks.ROW_BY_ROW`), positions and shapes are public, and a matrix product
computes every row from that row only, even if another row is not finite.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import vmap

from tacitly.neural.engine.device import device_failures
from tacitly.neural.engine.ghost_clipping import Piece, Products, Vectors, copied_rows
from tacitly.neural.engine.layer_hooks import LayerHooks, row_by_row, trains_only_linear_layers
from tacitly.neural.engine.update import UserUpdate


def supports_one_step(update: UserUpdate) -> bool:
    """Return whether an update is a single step on linear layers; this is public.

    An ``augment`` function is the caller's code and is given one user's rows at a time, so it is excluded.
    """
    body = update.body.module
    return (
        type(update) is UserUpdate
        and update.training.local_steps == 1
        and not update.training.local_decay
        and not (update.pull and update.training.warm)
        and update.training.augment is None
        and bool(update.body.shapes)
        and row_by_row(body)
        and trains_only_linear_layers(body)
        and not any(isinstance(layer, nn.Embedding) for layer in update.head.module.modules())
    )


def runs_padded(device: torch.device, rows: int) -> bool:
    """Return whether all users' rows pass the body in one padded call: not on a CPU if most rows would be padding."""
    return device.type != "cpu" or rows <= 32


class Chunk(NamedTuple):
    """Gradients of the users in these positions (None if they could not be computed), and the weights of all rows.

    ``own`` is the state of these users after the round.
    """

    pieces: list[Piece] | None
    positions: slice
    weights: Tensor
    own: Tensor


class OneStep:
    """Compute the gradients of chunks of users. One object per worker: it sets parameters in its own module copies."""

    def __init__(self, update: UserUpdate) -> None:
        self._original = update
        self._update = replace(update, head=update.head.alone())
        self._body = update.body.alone()
        self._hooks = LayerHooks(self._body.module, list(update.body.shapes))
        self._feature_gradients = vmap(self._update.feature_gradients, in_dims=(None, 0, 0, 0, 0), randomness="error")

    def guarded(
        self, public: Tensor, rows: Tensor, targets: Tensor, weights: Tensor, own: Tensor, taken: int
    ) -> Iterator[Chunk]:
        """Yield a chunk; if a user's values make it fail, which is private, yield each user computed alone."""
        whole = self._or_none(public, rows, targets, weights, own)
        if whole is not None:
            yield Chunk(whole[0], slice(0, taken), weights, whole[1][:taken])
            return
        for position in range(taken):
            alone = [torch.zeros_like(part) for part in (rows, targets, weights, own)]
            for part, everyone in zip(alone, (rows, targets, weights, own), strict=True):
                part[position] = everyone[position]
            mine = self._or_none(public, *alone)
            here = slice(position, position + 1)
            pieces, ended = mine if mine is not None else (None, torch.full_like(own, torch.nan))
            yield Chunk(pieces, here, alone[2], ended[here])

    def _or_none(self, public: Tensor, *given: Tensor) -> tuple[list[Piece], Tensor] | None:
        try:
            with device_failures():
                return self(public, *given)
        except MemoryError:
            raise
        except Exception:
            return None

    def __call__(
        self, public: Tensor, rows: Tensor, targets: Tensor, weights: Tensor, own: Tensor
    ) -> tuple[list[Piece], Tensor]:
        """Return all users' gradients, one piece per parameter in order, and their states after the round.

        Rows are users × rows × columns; ``own`` has one row per user.
        """
        size, public, (users, max_rows) = self._body.size, public.clone(), rows.shape[:2]
        self._hooks.clear()
        padded = runs_padded(rows.device, max_rows)
        counts = [max_rows] * users if padded else weights.count_nonzero(1).clamp_min(1).tolist()

        def calls_of(values: Tensor) -> list[Tensor]:
            """Return the values that pass the body in one call: those of all users, or each user's without padding."""
            if padded:
                return [values.flatten(0, 1)]
            return [mine[:count] for mine, count in zip(values, counts, strict=True)]

        inputs_of_calls = calls_of(rows)
        with torch.enable_grad():
            parts = self._body.parts(public[:size])
            features = [self._body.apply(parts, mine) for mine in inputs_of_calls]
        recorded = self._hooks.take()
        batched = features[0].detach().view(users, max_rows, -1) if padded else _pad(features, max_rows)
        row_gradients, head, ended = self._feature_gradients(public[size:], batched, targets, weights, own)
        outputs = [output for calls in recorded.values() for _, output in calls]
        gradients = torch.autograd.grad(
            features, outputs, calls_of(row_gradients), allow_unused=True, materialize_grads=True
        )
        n_calls = len(inputs_of_calls)
        layer_gradients = {layer: gradients[i * n_calls : (i + 1) * n_calls] for i, layer in enumerate(recorded)}
        layer_inputs = {layer: torch.cat([given for given, _ in calls]) for layer, calls in recorded.items()}
        pieces: list[Piece] = []
        for name in self._original.body.shapes:
            layer, _, kind = name.rpartition(".")
            a, g = layer_inputs[layer], torch.cat(layer_gradients[layer])
            if kind == "weight" and padded:
                pieces.append(Products.from_padded(a, g, max_rows))
            elif kind == "weight":
                pieces.append(Products.from_rows(a, g, counts, max_rows))
            elif padded:
                pieces.append(Vectors.from_rows(g.view(users, max_rows, -1).sum(1, dtype=torch.float64)))
            else:
                pieces.append(Vectors.from_rows(torch.stack([mine.double().sum(0) for mine in copied_rows(g, counts)])))
        sizes = [shape.numel() for shape in self._original.head.shapes.values()] if self._original.move_head else []
        shared = [Vectors.from_rows(part) for part in torch.split(head, sizes, 1)] if sizes else []
        return [*pieces, *shared], ended


def _pad(features: Sequence[Tensor], rows: int) -> Tensor:
    """Return users × rows × features, padded with zeros."""
    padded = features[0].new_zeros(len(features), rows, features[0].shape[1])
    for target, mine in zip(padded, features, strict=True):
        target[: len(mine)] = mine.detach()
    return padded
