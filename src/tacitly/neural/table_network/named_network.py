"""A network as data: public numbers that determine it, so that it can be sent to where rows are without any code.

The receiver of a :class:`NamedNetwork` builds it from layers of this library. Weights that are not learned (fixed
filters, the public head) are sent as numbers and are not drawn or computed again, because two machines might differ.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from tacitly.arrays import Array
from tacitly.neural.engine.flat import Flat, load
from tacitly.neural.engine.local_training import LocalTraining
from tacitly.neural.engine.public_prefix import split_body
from tacitly.neural.networks.architectures import InRange, mlp
from tacitly.neural.networks.images import image_architecture

Network = tuple[nn.Sequential, nn.Linear]
"""Body and head."""

_COLUMNS, _OUTPUTS, _WIDTH = 1 << 18, 10_000, 1 << 14
_LAYOUT = re.compile(r"[1-9][0-9]{0,5}(,[1-9][0-9]{0,5}){0,7}|[1-9][0-9]{0,5}(x[1-9][0-9]{0,5}){2}")
_WORK = 1 << 28
"""Maximum of parameters times steps that a message may request: with the rows of a dry run this takes seconds."""

_FILTERS, _SIZE, _GRID, _DIRECTIONS = 128, 5, 16, 128
"""Of :func:`image_architecture`: filters in both signs, their side, pooled positions, learned directions."""

_ACTIVATIONS = 1 << 26
"""Maximum number of outputs of filters at a time: 256 MiB."""


def named_network(
    for_images: Callable[..., Network],
    columns: int,
    outputs: int,
    *,
    widths: Sequence[int] = (),
    shape: Sequence[int] = (),
    feature_range: Sequence[float] | None = None,
    seed: int = 0,
) -> Network:
    """Return a perceptron of these widths, or a network ``for_images`` of this shape, preceded by a map to its range.

    >>> body, head = named_network(image_architecture, 3, 2, widths=(4,), feature_range=(40, 60))
    >>> body[0], head.in_features
    (InRange(40, 60), 4)
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if shape:
            body, head = for_images(outputs, tuple(shape), seed=seed)
        else:
            body, head = mlp(columns, tuple(widths), outputs)
    if feature_range is None:
        return body, head
    low, high = feature_range
    return nn.Sequential(InRange(low, high, lowest=0.0 if shape else -1.0), *body), head


@dataclass(frozen=True, kw_only=True, eq=False)
class NamedNetwork:
    """A network, and what users compute with it in a round.

    ``layout`` is the widths of hidden layers with commas, or the shape of images: ``"16,8"``, ``"1x28x28"``. A range
    with equal ends means no range. One output means numbers, more mean classes. ``frozen`` are the values of the body's
    public part, ``head`` those of the public head.

    A site receives these fields from others, so they are bounded before anything is built, and memory with them: what
    is built is as large as the numbers that arrived, and filters see a bounded number of pixels at a time.
    """

    columns: int
    outputs: int
    layout: str
    low: float
    high: float
    target_low: float
    target_high: float
    local_steps: int
    local_rate: float
    head_steps: int
    frozen: Array
    head: Array

    def __post_init__(self) -> None:
        if not _LAYOUT.fullmatch(self.layout):
            raise ValueError(f"layout must be widths, 16,8, or the shape of images, 1x28x28. Found {self.layout!r}.")
        if not (1 <= self.columns <= _COLUMNS and 1 <= self.outputs <= _OUTPUTS and max(self._sizes) <= _WIDTH):
            raise ValueError(
                f"a network that is sent has at most {_COLUMNS:,} columns, {_OUTPUTS:,} outputs and {_WIDTH:,} units "
                f"in a layer. Found {self.columns:,}, {self.outputs:,} and {self.layout}."
            )
        if self.shape and (self.outputs < 2 or math.prod(self.shape) != self.columns or len(set(self.shape[1:])) > 1):
            raise ValueError(f"images are square, in classes, and their pixels are the columns. Found {self.layout}.")
        for low, high in ((self.low, self.high), (self.target_low, self.target_high)):
            if not (math.isfinite(low) and math.isfinite(high) and low <= high):
                raise ValueError("a range has two finite ends, the lower first.")
        if not (math.isfinite(self.local_rate) and self.local_rate > 0.0):
            raise ValueError("local_rate must be positive and finite.")
        steps = self.training()
        work = (self.learned_size + len(self.head)) * (1 + steps.local_steps + steps.head_steps)
        if work > _WORK:
            raise ValueError(
                f"a network that is sent has at most {_WORK:,} parameters times steps. Found {work:,}: use smaller "
                "widths or steps, or fit in one process (engine=None)."
            )
        found, expected = (self.frozen.shape, self.head.shape), ((self._frozen_size,), (self.head_size,))
        if found != expected:
            raise ValueError(f"expected fixed numbers of shapes {expected} for this layout. Found {found}.")

    @classmethod
    def of(
        cls,
        prefix: nn.Module,
        head: nn.Module,
        training: LocalTraining,
        *,
        columns: int,
        outputs: int,
        widths: Sequence[int],
        shape: Sequence[int],
        feature_range: Sequence[float] | None,
        target_range: Sequence[float] | None,
    ) -> NamedNetwork:
        """Describe a network that :func:`named_network` returned; ``prefix`` is the public part of its body."""
        (low, high), (target_low, target_high) = feature_range or (0.0, 0.0), target_range or (0.0, 0.0)
        return cls(
            columns=columns,
            outputs=outputs,
            layout="x".join(map(str, shape)) if shape else ",".join(map(str, widths)),
            low=float(low),
            high=float(high),
            target_low=float(target_low),
            target_high=float(target_high),
            local_steps=training.local_steps,
            local_rate=training.local_rate,
            head_steps=training.head_steps,
            frozen=_numbers(prefix),
            head=_numbers(head),
        )

    @property
    def widths(self) -> tuple[int, ...]:
        """Units of hidden layers; empty for images."""
        return () if self.shape else self._sizes

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of images; empty for columns."""
        return self._sizes if "x" in self.layout else ()

    @property
    def learned_size(self) -> int:
        """Number of learned parameters."""
        if self.shape:
            return self.outputs * (_DIRECTIONS + 1)
        return sum((before + 1) * after for before, after in itertools.pairwise((self.columns, *self.widths)))

    @property
    def head_size(self) -> int:
        """Number of parameters of a head."""
        seen = self.outputs + _DIRECTIONS // 2 if self.shape else self.widths[-1]
        return (seen + 1) * self.outputs

    @property
    def window(self) -> int:
        """The number of rows that pass the public part at a time."""
        rows = self.training().rows
        return max(1, min(rows, _ACTIVATIONS // (_FILTERS * math.prod(self.shape[1:])))) if self.shape else rows

    @property
    def _frozen_size(self) -> int:
        if not self.shape:
            return 0
        return _FILTERS * (self.shape[0] * _SIZE**2 + 1) + (_FILTERS * _GRID + 1) * _DIRECTIONS

    @property
    def _sizes(self) -> tuple[int, ...]:
        return tuple(int(word) for word in self.layout.replace("x", ",").split(","))

    def training(self) -> LocalTraining:
        """Return what a user computes in a round."""
        loss = "squares" if self.outputs == 1 else "classes"
        steps = {"local_steps": self.local_steps, "head_steps": self.head_steps}
        return LocalTraining(**steps, local_rate=self.local_rate, loss=loss)  # type: ignore[arg-type]

    def modules(self) -> tuple[nn.Module, nn.Module, nn.Linear]:
        """Return the body's public part, the rest of it, and the public head."""
        given = None if self.low == self.high else (self.low, self.high)
        described = {"widths": self.widths, "shape": self.shape, "feature_range": given}
        body, head = named_network(image_architecture, self.columns, self.outputs, **described)  # type: ignore[arg-type]
        prefix, rest = split_body(body, self.columns)
        _take(prefix, self.frozen)
        _take(head, self.head)
        return prefix, rest, head

    def targets(self, y: Array) -> Array:
        """Return targets as the network sees them: from −1 to 1, if their range is public."""
        return y if self.target_low == self.target_high else to_unit_range(y, self.target_low, self.target_high)


def to_unit_range(y: Array, low: float, high: float) -> Array:
    """Clip numbers to a public range and map it to [−1, 1].

    >>> to_unit_range(np.array([900.0, 1000.0, 1200.0]), 900, 1100)
    array([-1.,  0.,  1.])
    """
    return np.asarray((np.clip(y, low, high) - low) * (2.0 / (high - low)) - 1.0)


def with_numbers(rest: nn.Module, learned: Array) -> nn.Module:
    """Set the learned parameters of the rest of a body, and return it."""
    flat = Flat(rest)
    load(rest, flat, torch.as_tensor(learned, dtype=flat.start.dtype))
    return rest


def _numbers(module: nn.Module) -> Array:
    values = [value.detach().cpu().double().numpy().ravel() for value in module.state_dict().values()]
    return np.concatenate([np.zeros(0), *values])


def _take(module: nn.Module, numbers: Array) -> None:
    state = module.state_dict()
    sizes = [value.numel() for value in state.values()]
    parts = np.split(numbers, np.cumsum(sizes)[:-1]) if sizes else []
    module.load_state_dict(
        {
            name: torch.as_tensor(part).reshape(value.shape).to(value.dtype)
            for (name, value), part in zip(state.items(), parts, strict=True)
        }
    )
