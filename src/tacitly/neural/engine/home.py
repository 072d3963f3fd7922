"""What users keep at home between rounds: warm heads, or the local part of a personalised network.

Algorithm 2 of CENTAUR starts a user's head where it ended in the round before. That is state, so it needs an answer to:
whose, and where? It is the user's, it stays beside that user's rows, and nothing of it is released or saved.

Why a release stays one Gaussian event. With everybody asked in each round, the state of a user is a function of that
user's own rows and of earlier public bodies; so is the contribution made from it. Changing one user's data changes one
summand, clipped as ever, and adaptive composition covers that bodies are public. Two things would break this, and are
excluded: state of one user reaching another (keys below), and secret sampling. A coin that decided whether a head was
fitted would leave a trace in it, contributions of different rounds would share coins, and the accountant's composition
of independent coins would not hold: estimators refuse both together.

Keys. A user is known by the address and the number of their rows, in an array that nobody may write to and that is
held as long as the state, so that the address cannot come to mean other rows. Rows that could be changed (users of a
dry run) have no state and start from the public head; synthetic users of the door have their own, which nobody asks for
again.

State belongs to a round: whoever is asked twice in one round starts from the same state twice. State that is not finite
is not kept. A run that is resumed after a kill has lost it; users then start again from the public head.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence

import torch
from torch import Tensor

from tacitly.arrays import Rows

LAST_ROUND = sys.maxsize
"""Later than any round: what users have at the end."""

Key = tuple[int, int, int] | None
"""Addresses of a user's rows and targets, and how many there are; None where nothing may be kept."""


def key_of(X: Rows, y: Rows) -> Key:
    """Return who these rows belong to; None if somebody could change them."""
    if X.flags.writeable or y.flags.writeable:
        return None
    return X.__array_interface__["data"][0], y.__array_interface__["data"][0], len(X)


class Home:
    """One vector per user between rounds, starting from a public one.

    >>> import numpy as np
    >>> home, (X, y) = Home(torch.zeros(2)), (np.ones((3, 1)), np.ones(3))
    >>> X.setflags(write=False), y.setflags(write=False)
    (None, None)
    >>> who = [key_of(X, y)]
    >>> home.keep(who, 0, torch.ones(1, 2), [(X, y)])
    >>> home.start(who, 0), home.start(who, 1), home.start([None], 1)
    (tensor([[0., 0.]]), tensor([[1., 1.]]), tensor([[0., 0.]]))
    """

    def __init__(self, public: Tensor) -> None:
        self.public = public
        self._places: dict[Key, int] = {}
        self._rounds: list[int] = []
        self._before = public.new_zeros((0, public.numel()))
        self._after = public.new_zeros((0, public.numel()))
        self._held: dict[int, object] = {}
        self._lock = threading.Lock()  # workers keep the state of different users at the same time

    @property
    def keeps(self) -> bool:
        """Whether users keep anything between rounds."""
        return self.public.numel() > 0

    def start(self, keys: Sequence[Key], round_number: int) -> Tensor:
        """Return what each user starts a round from: one row per user."""
        with self._lock:
            started = self.public.repeat(len(keys), 1)
            known = [(row, self._places[key]) for row, key in enumerate(keys) if key in self._places]
            again = [(row, place) for row, place in known if self._rounds[place] == round_number]
            later = [(row, place) for row, place in known if self._rounds[place] < round_number]
            for pairs, kept in ((again, self._before), (later, self._after)):
                if pairs:
                    rows, places = (list(part) for part in zip(*pairs, strict=True))
                    started[rows] = kept[places]
            return started

    def keep(self, keys: Sequence[Key], round_number: int, ended: Tensor, sources: Sequence[tuple[Rows, Rows]]) -> None:
        """Keep what each user ended a round with; ``sources`` are the arrays that the keys' addresses lie in."""
        with self._lock:
            rows = [row for row, key in enumerate(keys) if key is not None]  # none where nothing is kept
            if not rows:
                return
            places = [self._place(keys[row]) for row in rows]
            fresh = [place for place in places if self._rounds[place] != round_number]
            self._before[fresh] = self._after[fresh]
            for place in fresh:
                self._rounds[place] = round_number
            ended = ended[rows]
            finite = torch.isfinite(ended).all(1, keepdim=True)
            self._after[places] = torch.where(finite, ended, self._before[places])
            owners = [part if part.base is None else part.base for both in sources for part in both]
            self._held.update({id(owner): owner for owner in owners})

    def _place(self, key: Key) -> int:
        if key not in self._places:
            place = self._places[key] = len(self._places)
            if place >= len(self._after):
                more = self.public.repeat(max(16, len(self._after)), 1)
                self._before, self._after = (torch.cat([part, more]) for part in (self._before, self._after))
            self._rounds.append(-1)
        return self._places[key]
