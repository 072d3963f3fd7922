"""One local step for many users at once, without anybody's slope of the body ever being written down.

With a single step everybody's slope is taken at the public body, so rows of a chunk of users go through it together:
forward once, a head and the slope of the loss in every row's features for each user by itself, backward once. (On a CPU
each user's rows go alone where there may be many, so that nothing is padded; heads are fitted together all the same.)
What went into every linear layer and the slopes of what came out are all that is needed:
:mod:`tacitly.neural.engine.ghost_clipping` bounds and adds them, and says why that is sound. Memory is rows × width of
a chunk and a body or two.

A row's numbers do not depend on anybody else's, to the last bit: only layers that take rows one by one are let in
(:data:`tacitly.neural.engine.layer_hooks.ROW_BY_ROW`), places and shapes are public, and a product of matrices gives
every row from that row alone, also where another is not finite.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import vmap

from tacitly.neural.engine.device import machine_failures
from tacitly.neural.engine.ghost_clipping import Piece, Products, Vectors, own_rows
from tacitly.neural.engine.layer_hooks import Taps, learned_by_linear_layers, row_by_row
from tacitly.neural.engine.update import UserUpdate


def can(update: UserUpdate) -> bool:
    """Whether an update is a single step on linear layers: public.

    An ``augment`` is code of the user's own and is given one user at a time, as it always was.
    """
    body = update.body.module
    return (
        type(update) is UserUpdate
        and update.training.local_steps == 1
        and update.training.augment is None
        and bool(update.body.shapes)
        and row_by_row(body)
        and learned_by_linear_layers(body)
        and not any(isinstance(layer, nn.Embedding) for layer in update.head.module.modules())
    )


def together(device: torch.device, rows: int) -> bool:
    """Whether everybody's rows go through the body in one call, with padding: not where that is most of it on a CPU."""
    return device.type != "cpu" or rows <= 32


class Chunk(NamedTuple):
    """What the slopes of users in these places are made of (nothing, where that failed), and weights of all rows."""

    pieces: list[Piece] | None
    places: slice
    weights: Tensor


class OneStep:
    """What a chunk of users' slopes are made of. One for a worker: parameters are put into its own copies."""

    def __init__(self, update: UserUpdate) -> None:
        self._given = update
        self._update = replace(update, head=update.head.alone())
        self._body = update.body.alone()
        self._taps = Taps(self._body.module, list(update.body.shapes))
        self._pulls = vmap(self._update.pulls, in_dims=(None, 0, 0, 0), randomness="error")

    def guarded(self, public: Tensor, rows: Tensor, targets: Tensor, weights: Tensor, taken: int) -> Iterator[Chunk]:
        """Yield a chunk, or everybody in it without the others where a user's numbers make it fail: that is private."""
        whole = self._safely(public, rows, targets, weights)
        if whole is not None:
            yield Chunk(whole, slice(0, taken), weights)
            return
        for place in range(taken):
            alone = [torch.zeros_like(part) for part in (rows, targets, weights)]
            for part, everybody in zip(alone, (rows, targets, weights), strict=True):
                part[place] = everybody[place]
            yield Chunk(self._safely(public, *alone), slice(place, place + 1), alone[2])

    def _safely(self, public: Tensor, *given: Tensor) -> list[Piece] | None:
        try:
            with machine_failures():
                return self(public, *given)
        except MemoryError:
            raise
        except Exception:
            return None

    def __call__(self, public: Tensor, rows: Tensor, targets: Tensor, weights: Tensor) -> list[Piece]:
        """Return everybody's slopes, a piece for every parameter in order; rows are users × rows × columns."""
        size, public, (users, most) = self._body.size, public.clone(), rows.shape[:2]
        self._taps.forget()
        padded = together(rows.device, most)
        counts = [most] * users if padded else weights.count_nonzero(1).clamp_min(1).tolist()
        with torch.enable_grad():
            parts = self._body.parts(public[:size])
            apart = [rows.flatten(0, 1)] if padded else [mine[:count] for mine, count in zip(rows, counts, strict=True)]
            features = [self._body.at(parts, mine) for mine in apart]
        seen = self._taps.take()
        shown = features[0].detach().view(users, most, -1) if padded else _padded(features, most)
        down, head = self._pulls(public[size:], shown, targets, weights)
        downs = [down.flatten(0, 1)] if padded else [mine[:count] for mine, count in zip(down, counts, strict=True)]
        outputs = [output for calls in seen.values() for _, output in calls]
        slopes = torch.autograd.grad(features, outputs, downs, allow_unused=True, materialize_grads=True)
        found = {layer: slopes[i * len(apart) : (i + 1) * len(apart)] for i, layer in enumerate(seen)}
        inputs = {layer: torch.cat([given for given, _ in calls]) for layer, calls in seen.items()}
        pieces: list[Piece] = []
        for name in self._given.body.shapes:
            layer, _, kind = name.rpartition(".")
            a, g = inputs[layer], torch.cat(found[layer])
            if kind == "weight":
                pieces.append(Products.padded(a, g, most) if padded else Products.made(a, g, counts, most))
            elif padded:
                pieces.append(Vectors.made(g.view(users, most, -1).sum(1, dtype=torch.float64)))
            else:
                pieces.append(Vectors.made(torch.stack([mine.double().sum(0) for mine in own_rows(g, counts)])))
        lengths = [shape.numel() for shape in self._given.head.shapes.values()] if self._given.move_head else []
        return [*pieces, *(Vectors.made(part) for part in torch.split(head, lengths, 1) if lengths)]


def _padded(features: Sequence[Tensor], rows: int) -> Tensor:
    """Return everybody's features with zeros behind them, users × rows × numbers."""
    shown = features[0].new_zeros(len(features), rows, features[0].shape[1])
    for place, mine in zip(shown, features, strict=True):
        place[: len(mine)] = mine.detach()
    return shown
