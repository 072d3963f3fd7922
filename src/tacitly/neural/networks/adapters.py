"""Low-rank adapters: learn a small change of a frozen public network instead of the network.

LoRA (Hu et al. 2022) in the setting of CENTAUR and AMHT-LRS: the public network's weights W do not change, and W +
up·down of rank r is learned under user-level differential privacy, with (inputs + outputs)·r parameters for each layer;
heads are personal. ``up`` starts at zero, so the network starts as the public one.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn


class LowRankAdapter(nn.Module):
    """A frozen linear layer plus a learned map of rank ``rank``; a function of its input without state.

    >>> layer = nn.Linear(4, 3)
    >>> torch.equal(LowRankAdapter(layer, 1)(torch.ones(2, 4)), layer(torch.ones(2, 4)))
    True
    """

    def __init__(self, layer: nn.Linear, rank: int, seed: int = 0) -> None:
        super().__init__()
        self.public = copy.deepcopy(layer).requires_grad_(False)
        options = {"bias": False, "dtype": layer.weight.dtype, "device": layer.weight.device}
        self.down = nn.Linear(layer.in_features, rank, **options)  # type: ignore[arg-type]
        self.up = nn.Linear(rank, layer.out_features, **options)  # type: ignore[arg-type]
        with torch.no_grad():
            generator = torch.Generator().manual_seed(seed)
            start = torch.randn(rank, layer.in_features, generator=generator) / layer.in_features**0.5
            self.down.weight.copy_(start)
            self.up.weight.zero_()

    def forward(self, values: Tensor) -> Tensor:
        """Return the output of the public layer, plus the learned change."""
        result: Tensor = self.public(values) + self.up(self.down(values))
        return result


def adapters(model: nn.Module, rank: int = 4, targets: Sequence[str] | None = None, *, seed: int = 0) -> nn.Module:
    """Return a copy of a public network in which only low-rank changes of some linear layers are trainable.

    ``targets`` are the layers' names or ends of names, such as ``"inputs"`` (None: all linear layers). Use the result
    as the body of :class:`tacitly.neural.Centaur`.

    >>> from tacitly.neural.networks.blocks import transformer
    >>> body = adapters(transformer(50, 8, width=16)[0], rank=1, targets=["inputs"])
    >>> sum(value.numel() for value in body.parameters() if value.requires_grad)
    128
    """
    if rank < 1:
        raise ValueError(f"rank must be at least 1. Found {rank!r}.")
    adapted = copy.deepcopy(model).requires_grad_(False)
    linear = [name for name, layer in adapted.named_modules() if type(layer) is nn.Linear and name]
    chosen = [name for name in linear if targets is None or any(_ends_in(name, target) for target in targets)]
    if not chosen:
        raise ValueError(f"targets must name linear layers inside the model: {', '.join(linear) or 'it has none'}.")
    for number, name in enumerate(chosen):
        owner, _, key = name.rpartition(".")
        layer = adapted.get_submodule(name)
        assert isinstance(layer, nn.Linear)
        setattr(adapted.get_submodule(owner), key, LowRankAdapter(layer, rank, seed + number))
    return adapted


def _ends_in(name: str, target: str) -> bool:
    return name == target or name.endswith(f".{target}")
