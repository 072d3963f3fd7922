"""What the coordinator believes of what arrives: one round's answers, each checked before it is added.

Nothing that arrives raises. An answer is added once, from a node that was asked, with the token that this node was
given in this round, in the right shape and within what its users could have sent; everything else is counted under a
code and dropped. An answer that is longer than its users' clips together is scaled down to them, so that a node counts
for its users and no more.
"""

from __future__ import annotations

import hmac
import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from tacitly.federation.flower.messages import Answer
from tacitly.federation.wire import WireError

VERDICTS = ("ok", "clipped", "unknown", "duplicate", "late", "malformed", "shape", "range", "refused", "failed", "lost")


_USELESS = ("malformed", "shape", "range", "refused", "failed")  # only ever said of a node that was asked
# "lost" is what the transport says of a message that did not arrive, which is no answer: the node is asked again.


class Inbox:
    """One round's answers.

    ``tokens`` are what each node was asked with: a secret between it and the coordinator, so that who sent an answer
    does not rest on what the transport says. ``units`` says how many units (users, or rows) each of them speaks for;
    ``reach`` is the clip in steps of the grid, ``spread`` how far noise added by a node may reach (0 where nodes add
    none). With ``masked`` answers only a sum of all of them means anything, so their size cannot be checked. With
    ``counted`` ones every number is a sum of a unit's numbers between nothing and the reach (losses).

    >>> box = Inbox({7: "token"}, {7: 2}, 3, 100.0)
    >>> answer = Answer("token", "ok", np.array([1, 2, 3])).to_bytes()
    >>> [box.take(*arrived) for arrived in ((7, b"rubbish"), (8, answer), (7, answer), (7, answer))]
    ['malformed', 'unknown', 'ok', 'duplicate']
    >>> box.total
    array([1, 2, 3])
    """

    def __init__(
        self,
        tokens: Mapping[int, str],
        units: Mapping[int, int],
        coordinates: int,
        reach: float,
        *,
        spread: float = 0.0,
        masked: bool = False,
        counted: bool = False,
    ) -> None:
        self._tokens, self._units, self._coordinates = dict(tokens), dict(units), coordinates
        self._reach, self._spread, self._masked, self._counted = reach, spread, masked, counted
        self.total = np.zeros(coordinates, dtype=np.int64)
        self.verdicts: Counter[str] = Counter()
        self.answered: set[int] = set()
        self._given_up: set[int] = set()

    @property
    def waiting(self) -> set[int]:
        """Nodes that may still answer: not those that did, nor those that said what nobody can use."""
        return set(self._units) - self.answered - self._given_up

    def take(self, sender: Any, data: Any) -> str:
        """Look at one answer; return the verdict, which is counted too."""
        try:
            verdict = self._judge(sender, data)
        except Exception:  # whatever a stranger thought of: it is not an answer
            verdict = "malformed"
        self.verdicts[verdict] += 1
        if verdict in _USELESS:
            self._given_up.add(sender)
        return verdict

    def _judge(self, sender: Any, data: Any) -> str:
        if isinstance(sender, bool) or not isinstance(sender, int) or sender not in self._units:
            return "unknown"
        if data is None:
            return "lost"
        if not isinstance(data, bytes) or len(data) > 8 * self._coordinates + 1000:
            return "malformed"
        try:
            answer = Answer.from_bytes(data)
        except WireError:
            return "malformed"
        if not hmac.compare_digest(answer.token.encode(), self._tokens[sender].encode()):
            return "late"
        if sender in self.answered:
            return "duplicate"
        if answer.code != "ok":
            return answer.code
        if answer.total is None or answer.total.shape != (self._coordinates,):
            return "shape"
        verdict, total = ("ok", answer.total) if self._masked else self._within(answer.total, self._units[sender])
        if total is not None:
            self.total += total  # wraps around where masks are to cancel
            self.answered.add(sender)
        return verdict

    def _within(self, total: npt.NDArray[np.int64], units: int) -> tuple[str, npt.NDArray[np.int64] | None]:
        """Return the answer if these units could have sent it, scaled down if only their clips forbid it."""
        most = units * self._reach
        if self._counted:
            fits = bool(((total >= 0) & (total <= most)).all())
            return ("ok", total) if fits else ("range", None)
        limit = most + self._spread + units  # a rounding a block, at most one a unit
        if not ((total <= limit) & (total >= -limit)).all():
            return "range", None
        if self._spread > 0:
            return "ok", total
        norm = float(np.linalg.norm(total.astype(np.float64)))
        allowed = most + units * math.sqrt(self._coordinates)
        if norm <= allowed:
            return "ok", total
        return "clipped", np.rint(total * (allowed / norm)).astype(np.int64)
