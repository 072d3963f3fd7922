"""The group of a masked sum: how large it must be, for its noise and for its masks.

Plain arithmetic that settings, nodes and the coordinator share; the cryptography is in
:mod:`tacitly.federation.flower.masks`.
"""

from __future__ import annotations

TAG = 16
"""Bytes that authenticate a share, and bytes of a vote."""


def majority(nodes: int) -> int:
    """Return how many nodes' noise together must suffice: more than half of all.

    >>> majority(3), majority(4)
    (2, 3)
    """
    return nodes // 2 + 1


def least_group(nodes: int, colluding: int) -> int:
    """Minimum size of a group for a masked sum: a majority of all nodes besides the colluding ones, at least three.

    Every member knows its own share of the noise, so by default one of them is assumed to collude.

    >>> least_group(3, 1), least_group(9, 1), least_group(3, 0)
    (3, 6, 3)
    """
    return max(3, majority(nodes) + colluding)


def threshold(nodes: int, colluding: int) -> int:
    """Return how many nodes must take part in removing masks: any two such sets share an honest node.

    >>> threshold(3, 1), threshold(12, 1)
    (3, 7)
    """
    return (nodes + colluding) // 2 + 1


def check_colluding(nodes: int, colluding: int) -> None:
    """Raise unless masked sums of so many nodes can be removed and hide anything."""
    if not colluding >= 0 or least_group(nodes, colluding) > nodes:
        raise ValueError(
            f"colluding must be a whole number from 0 to {max(nodes - max(majority(nodes), 3), 0)} for {nodes} nodes, "
            f"and there must be three of them. Found {colluding}."
        )
