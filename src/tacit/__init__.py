"""Learn together without telling.

Many users, each with a little private data, learn a shared low-rank representation under user-level differential
privacy; each keeps a small personal model that nobody else ever sees.

>>> import tacit
>>> sorted(name for name in dir(tacit) if name.startswith("Private"))
['PrivateAltMin', 'PrivateFedRep']
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tacit import datasets as datasets
    from tacit import neural as neural
    from tacit import theory as theory
    from tacit.baselines import CentralModel as CentralModel
    from tacit.baselines import FedRep as FedRep
    from tacit.baselines import FullFineTuning as FullFineTuning
    from tacit.baselines import LocalModels as LocalModels
    from tacit.baselines import NuclearNorm as NuclearNorm
    from tacit.baselines import PromptLearning as PromptLearning
    from tacit.baselines import RGrad as RGrad
    from tacit.baselines import SingleModel as SingleModel
    from tacit.cells import DataError as DataError
    from tacit.cohort import Cohort as Cohort
    from tacit.estimators import Centaur as Centaur
    from tacit.estimators import LowRankSparse as LowRankSparse
    from tacit.estimators import PrivateAltMin as PrivateAltMin
    from tacit.estimators import PrivateFedRep as PrivateFedRep
    from tacit.estimators.fedpower import FedPower as FedPower
    from tacit.estimators.margin import MarginClassifier as MarginClassifier
    from tacit.estimators.trace_regression import TraceRegression as TraceRegression
    from tacit.linalg import subspace_distance as subspace_distance
    from tacit.model_folder import load as load
    from tacit.model_folder import save as save
    from tacit.privacy.certificate import Certificate as Certificate
    from tacit.privacy.guarantee import UncertifiedWarning as UncertifiedWarning
    from tacit.privacy.ledger import BudgetExceeded as BudgetExceeded
    from tacit.privacy.ledger import Ledger as Ledger

__version__ = "0.1.0"

# Heavy modules (Numba, scikit-learn, pyarrow) load when they are first used, so that `tacit --help` is quick.
_HOMES = {
    "BudgetExceeded": "tacit.privacy.ledger",
    "Centaur": "tacit.estimators",
    "CentralModel": "tacit.baselines",
    "Certificate": "tacit.privacy.certificate",
    "Cohort": "tacit.cohort",
    "DataError": "tacit.cells",
    "FedPower": "tacit.estimators.fedpower",
    "FedRep": "tacit.baselines",
    "FullFineTuning": "tacit.baselines",
    "Ledger": "tacit.privacy.ledger",
    "LocalModels": "tacit.baselines",
    "LowRankSparse": "tacit.estimators",
    "MarginClassifier": "tacit.estimators",
    "NuclearNorm": "tacit.baselines",
    "PrivateAltMin": "tacit.estimators",
    "PrivateFedRep": "tacit.estimators",
    "PromptLearning": "tacit.baselines",
    "RGrad": "tacit.baselines",
    "SingleModel": "tacit.baselines",
    "TraceRegression": "tacit.estimators.trace_regression",
    "UncertifiedWarning": "tacit.privacy.guarantee",
    "load": "tacit.model_folder",
    "save": "tacit.model_folder",
    "subspace_distance": "tacit.linalg",
}
_MODULES = ("datasets", "neural", "theory")

__all__ = [*_HOMES, *_MODULES]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    if name in _MODULES:
        return importlib.import_module(f"tacit.{name}")
    raise AttributeError(f"module 'tacit' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
