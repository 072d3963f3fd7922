"""Building blocks of networks besides PyTorch's layers: residual connections, attention, tokens.

They are among the known layers (:mod:`tacitly.neural.engine.layers`): functions of their input without state, each row
separately, in operations that can be batched over users. :func:`transformer` and :func:`residual_network` combine them.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tacitly.neural.networks.architectures import FlatToImage


class Residual(nn.Module):
    """A module whose input is added to its output.

    >>> Residual(nn.Identity())(torch.ones(1, 2))
    tensor([[2., 2.]])
    """

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, values: Tensor) -> Tensor:
        """Return the input plus the module's output."""
        result: Tensor = values + self.inner(values)
        return result


class SelfAttention(nn.Module):
    """Multi-head attention among the positions of each row: rows × positions × width.

    >>> SelfAttention(8, heads=2)(torch.zeros(3, 5, 8)).shape
    torch.Size([3, 5, 8])
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"width must be a multiple of heads. Found {width} and {heads}.")
        self.heads = heads
        self.inputs = nn.Linear(width, 3 * width)
        self.outputs = nn.Linear(width, width)

    def forward(self, values: Tensor) -> Tensor:
        """Return a weighted mean over all positions for each position."""
        rows, positions, width = values.shape
        split = self.inputs(values).reshape(rows, positions, 3, self.heads, width // self.heads)
        queries, keys, contents = split.permute(2, 0, 3, 1, 4).unbind(0)
        scores = queries @ keys.transpose(-1, -2) / (width // self.heads) ** 0.5
        mixed = torch.softmax(scores, -1) @ contents
        result: Tensor = self.outputs(mixed.transpose(1, 2).reshape(rows, positions, width))
        return result


class Tokens(nn.Module):
    """Rows of token numbers → rows × positions × width: a learned vector per token plus one per position.

    Numbers out of range are replaced by the nearest token, so that no row can stop a GPU; a row that is not finite
    stays so.

    >>> Tokens(10, length=3, width=4)(torch.tensor([[1.0, 2.0, 99.0]])).shape
    torch.Size([1, 3, 4])
    """

    def __init__(self, vocabulary: int, length: int, width: int) -> None:
        super().__init__()
        self.tokens = nn.Parameter(torch.randn(vocabulary, width) / width**0.5)
        self.positions = nn.Parameter(torch.randn(length, width) / width**0.5)

    def forward(self, rows: Tensor) -> Tensor:
        """Return the sum of both vectors for each position."""
        numbers = torch.nan_to_num(rows).round().clamp(0, self.tokens.shape[0] - 1).long()
        found = nn.functional.embedding(numbers, self.tokens)
        return found + self.positions + (0.0 * rows).unsqueeze(-1)


class MeanOverPositions(nn.Module):
    """The mean over positions: rows × positions × width → rows × width.

    >>> MeanOverPositions()(torch.ones(3, 5, 8)).shape
    torch.Size([3, 8])
    """

    def forward(self, values: Tensor) -> Tensor:
        """Return one vector per row."""
        return values.mean(1)


def transformer(
    vocabulary: int, length: int, classes: int = 2, *, width: int = 64, layers: int = 2, heads: int = 4
) -> tuple[nn.Sequential, nn.Linear]:
    """Return a small transformer as body and head; rows are token numbers, ``length`` of them.

    >>> body, head = transformer(50, 8, width=16)
    >>> head(body(torch.zeros(3, 8))).shape
    torch.Size([3, 2])
    """
    blocks: list[nn.Module] = [Tokens(vocabulary, length, width)]
    for _ in range(layers):
        mixing = nn.Sequential(nn.LayerNorm(width), SelfAttention(width, heads))
        thinking = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )
        blocks += [Residual(mixing), Residual(thinking)]
    return nn.Sequential(*blocks, nn.LayerNorm(width), MeanOverPositions()), nn.Linear(width, classes)


def residual_network(
    classes: int = 10, shape: tuple[int, int, int] = (3, 32, 32), *, width: int = 32, blocks: int = 3
) -> tuple[nn.Sequential, nn.Linear]:
    """Return a small residual network with group normalisation as body and head; rows are flat images.

    >>> body, head = residual_network(shape=(1, 8, 8), width=8, blocks=1)
    >>> head(body(torch.zeros(2, 64))).shape
    torch.Size([2, 10])
    """
    layers: list[nn.Module] = [FlatToImage(shape), nn.Conv2d(shape[0], width, 3, 2, 1)]
    for _ in range(blocks):
        inner = (nn.GroupNorm(4, width), nn.ReLU(), nn.Conv2d(width, width, 3, 1, 1))
        layers.append(
            Residual(nn.Sequential(*inner, nn.GroupNorm(4, width), nn.ReLU(), nn.Conv2d(width, width, 3, 1, 1)))
        )
    return nn.Sequential(*layers, nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()), nn.Linear(4 * width, classes)
