"""The constructor parameters that estimators share, declared once.

scikit-learn reads an estimator's parameters from the signature of ``__init__`` and expects each one stored unchanged.
Dataclasses do both, so an estimator declares its parameters as fields and inherits the common ones.

Positional parameters come in the order in which dataclasses collect fields: from the last base class to the first.
Leading parameters (``rank``) are therefore a *later* base than :class:`PrivateModel
<tacitly.methods.base.PrivateModel>`, which brings ``epsilon`` and those after it. What the parameters mean is
documented in :class:`tacitly.PrivateFedRep`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tacitly.federation.engine import Engine
from tacitly.privacy.ledger import Ledger


@dataclass(eq=False, repr=False, kw_only=True)
class RunParameters:
    """How a fit runs: how noise is drawn, which account is debited, how many threads, what becomes of bad rows."""

    noise: str = "auto"
    noise_seed: int | None = None
    ledger: Ledger | None = None
    run: str = "tacitly"
    threads: int | None = None
    on_bad_rows: str = "drop"


@dataclass(eq=False, repr=False)
class PrivacyParameters(RunParameters):
    """What is promised, and which version of the method keeps the promise."""

    epsilon: float
    delta: float = 1e-6
    adjacency: str = "zero-out"
    mode: str = "auto"
    random_state: int | None = None


@dataclass(eq=False, repr=False, kw_only=True)
class EngineParameter:
    """Where the users are, for methods that run on every engine."""

    engine: Engine | str | None = None


@dataclass(eq=False, repr=False)
class RankParameter:
    """The number of shared directions, first; for models on a basis also ``"auto"``: read off a release."""

    rank: Any


@dataclass(eq=False, repr=False)
class RankAndSparsity(RankParameter):
    """The number of shared directions, then how many personal coordinates users have."""

    sparsity: int | float | str
