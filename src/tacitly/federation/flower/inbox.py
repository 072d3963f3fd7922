"""The inbox: validates each answer of a round before the coordinator adds it.

No input raises an exception. An answer is added once, if it comes from a node that was asked, with the token of that
node for this round, in the right shape and within the range that its users could have sent. Everything else is counted
under a verdict and dropped. An answer whose norm exceeds the number of its users times the clip is scaled down to it,
so that a node has no more influence than its users.
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

# Verdicts given to asked nodes only, which are then not asked again. ("lost" means that the transport lost the message.
# That is no answer, so the node is asked again.)
_FINAL = ("malformed", "shape", "range", "refused", "failed")


class Inbox:
    """One round's answers.

    ``tokens`` are the nodes' tokens: a secret between each node and the coordinator, so that identifying the sender
    does not depend on the transport. ``units`` is the number of units (users, or rows) of each node; ``reach`` is the
    clip in steps of the grid, ``spread`` the largest noise that a node may add (0 if nodes add none). If answers are
    ``masked``, their size cannot be checked, and each is kept in ``answers`` instead of being added. If they are
    ``counted``, every coordinate is a sum over units of values between 0 and ``reach`` (losses).

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
        self.tokens, self._units, self._coordinates = dict(tokens), dict(units), coordinates
        self._reach, self._spread, self._masked, self._counted = reach, spread, masked, counted
        self.total = np.zeros(coordinates, dtype=np.int64)
        self.verdicts: Counter[str] = Counter()
        self.answered: set[int] = set()
        self.answers: dict[int, npt.NDArray[np.int64]] = {}
        self._given_up: set[int] = set()

    @property
    def waiting(self) -> set[int]:
        """Nodes that may still answer: neither answered nor given up."""
        return set(self._units) - self.answered - self._given_up

    def take(self, sender: Any, data: Any) -> str:
        """Validate one answer, add it if valid, and return the verdict, which is also counted."""
        try:
            verdict = self._judge(sender, data)
        except Exception:  # arbitrary input: not an answer
            verdict = "malformed"
        self.verdicts[verdict] += 1
        if verdict in _FINAL:
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
        if not hmac.compare_digest(answer.token.encode(), self.tokens[sender].encode()):
            return "late"
        if sender in self.answered:
            return "duplicate"
        if answer.code != "ok":
            return answer.code
        if answer.total is None or answer.total.shape != (self._coordinates,):
            return "shape"
        if self._masked:
            self.answers[sender] = answer.total
            self.answered.add(sender)
            return "ok"
        verdict, total = self._within(answer.total, self._units[sender])
        if total is not None:
            self.total += total
            self.answered.add(sender)
        return verdict

    def _within(self, total: npt.NDArray[np.int64], units: int) -> tuple[str, npt.NDArray[np.int64] | None]:
        """Return the answer if these units could have sent it, scaled down if only its norm is too large."""
        most = units * self._reach
        if self._counted:
            fits = bool(((total >= 0) & (total <= most)).all())
            return ("ok", total) if fits else ("range", None)
        limit = most + self._spread + units  # plus rounding: at most one step per unit
        if not ((total <= limit) & (total >= -limit)).all():
            return "range", None
        if self._spread > 0:
            return "ok", total
        norm = float(np.linalg.norm(total.astype(np.float64)))
        allowed = most + units * math.sqrt(self._coordinates)
        if norm <= allowed:
            return "ok", total
        return "clipped", np.rint(total * (allowed / norm)).astype(np.int64)
