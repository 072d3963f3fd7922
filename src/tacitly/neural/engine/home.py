"""Users' local state between rounds: warm heads, or the local part of a personalised network.

Algorithm 2 of CENTAUR starts a user's head from its value after the previous round. This is state, so it must be clear
who owns it and where it is. It belongs to the user, is stored next to that user's rows, and is never released or saved.

Why a release is still one Gaussian event. If every user is asked in each round, a user's state is a function of that
user's own rows and of earlier public bodies, and so is the contribution computed from it. Changing one user's data
changes one clipped summand, and adaptive composition covers the public bodies. Two cases would break this argument and
are excluded: state of one user that reaches another (see keys below), and secret sampling. A coin that decides whether
a head is fitted would leave a trace in it. Contributions of different rounds would then share coins, and composition of
independent coins would not hold. So estimators refuse the combination.

Keys. A user is identified by the address and the number of their rows, in a read-only array that is referenced as long
as the state exists, so that the address cannot be reused for other rows. Rows that could be changed (users of a dry
run) have no state and start from the public head. Synthetic users of a federation's test have their own state, which is
never used again.

State belongs to a round: a user who is asked twice in one round starts from the same state twice. State that is not
finite is not stored. A run that is resumed after a crash has lost its state; users then start again from the public
head.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence

import torch
from torch import Tensor

from tacitly.arrays import Rows

LAST_ROUND = sys.maxsize
"""Later than any round: selects the state at the end."""

Key = tuple[int, int, int] | None
"""Addresses of a user's rows and targets, and their number; None if no state may be stored."""


def key_of(X: Rows, y: Rows) -> Key:
    """Return the key of these rows; None if the rows are writable."""
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
        self._lock = threading.Lock()  # workers store the state of different users at the same time

    @property
    def keeps(self) -> bool:
        """Whether users keep state between rounds."""
        return self.public.numel() > 0

    def start(self, keys: Sequence[Key], round_number: int) -> Tensor:
        """Return each user's state at the start of a round: one row per user."""
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
        """Store each user's state at the end of a round; the keys' addresses point into the arrays ``sources``."""
        with self._lock:
            rows = [row for row, key in enumerate(keys) if key is not None]  # empty if no state is stored
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
