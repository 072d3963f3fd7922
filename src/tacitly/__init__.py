"""Learn together without telling.

Many users, each with a little private data, learn what they have in common under user-level differential privacy. Each
user keeps a small personal model that no other user ever sees.

Estimators are listed in the methods' own descriptions (:mod:`tacitly.methods.registry`). Heavy modules (Numba,
scikit-learn, pyarrow) are loaded on first use, so that ``tacitly --help`` is fast.

>>> import tacitly
>>> sorted(name for name in dir(tacitly) if name.startswith("Private"))
['PrivateAltMin', 'PrivateFedRep']
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tacitly.methods import REGISTRY

if TYPE_CHECKING:
    from tacitly import audit as audit
    from tacitly import datasets as datasets
    from tacitly import neural as neural
    from tacitly import theory as theory
    from tacitly.baselines.fedrep import FedRep as FedRep
    from tacitly.baselines.fine_tuned import CentralModel as CentralModel
    from tacitly.baselines.fine_tuned import FullFineTuning as FullFineTuning
    from tacitly.baselines.fine_tuned import PromptLearning as PromptLearning
    from tacitly.baselines.local import LocalModels as LocalModels
    from tacitly.baselines.rgrad import NuclearNorm as NuclearNorm
    from tacitly.baselines.rgrad import RGrad as RGrad
    from tacitly.baselines.single import SingleModel as SingleModel
    from tacitly.data.cohort import Cohort as Cohort
    from tacitly.data.splitting import WithinUsers as WithinUsers
    from tacitly.data.validation import DataError as DataError
    from tacitly.linalg import subspace_distance as subspace_distance
    from tacitly.methods.copies import SearchWarning as SearchWarning
    from tacitly.methods.evaluation import choose as choose
    from tacitly.model_folder import load as load
    from tacitly.model_folder import save as save
    from tacitly.planning import Plan as Plan
    from tacitly.planning import plan as plan
    from tacitly.predictor import Predictor as Predictor
    from tacitly.privacy.certificate import Certificate as Certificate
    from tacitly.privacy.guarantee import Budget as Budget
    from tacitly.privacy.guarantee import LargeDeltaWarning as LargeDeltaWarning
    from tacitly.privacy.guarantee import UncertifiedWarning as UncertifiedWarning
    from tacitly.privacy.ledger import BudgetExceeded as BudgetExceeded
    from tacitly.privacy.ledger import Ledger as Ledger
    from tacitly.reporting import report as report

# <methods>
if TYPE_CHECKING:
    from tacitly.methods.altmin.estimator import PrivateAltMin as PrivateAltMin
    from tacitly.methods.centaur.estimator import Centaur as Centaur
    from tacitly.methods.fedpower.estimator import FedPower as FedPower
    from tacitly.methods.fedrep.estimator import PrivateFedRep as PrivateFedRep
    from tacitly.methods.low_rank_sparse.estimator import LowRankSparse as LowRankSparse
    from tacitly.methods.margin.estimator import MarginClassifier as MarginClassifier
    from tacitly.methods.mixed_effects.estimator import MixedEffects as MixedEffects
    from tacitly.methods.recommender.estimator import Recommender as Recommender
    from tacitly.methods.trace_regression.estimator import TraceRegression as TraceRegression
# </methods>

__version__ = "0.1.0"

_HOMES = {
    "Budget": "tacitly.privacy.guarantee",
    "BudgetExceeded": "tacitly.privacy.ledger",
    "CentralModel": "tacitly.baselines.fine_tuned",
    "Certificate": "tacitly.privacy.certificate",
    "Cohort": "tacitly.data.cohort",
    "DataError": "tacitly.data.validation",
    "FedRep": "tacitly.baselines.fedrep",
    "FullFineTuning": "tacitly.baselines.fine_tuned",
    "Ledger": "tacitly.privacy.ledger",
    "LocalModels": "tacitly.baselines.local",
    "NuclearNorm": "tacitly.baselines.rgrad",
    "Plan": "tacitly.planning",
    "Predictor": "tacitly.predictor",
    "PromptLearning": "tacitly.baselines.fine_tuned",
    "RGrad": "tacitly.baselines.rgrad",
    "LargeDeltaWarning": "tacitly.privacy.guarantee",
    "SearchWarning": "tacitly.methods.copies",
    "SingleModel": "tacitly.baselines.single",
    "UncertifiedWarning": "tacitly.privacy.guarantee",
    "WithinUsers": "tacitly.data.splitting",
    "choose": "tacitly.methods.evaluation",
    "load": "tacitly.model_folder",
    "plan": "tacitly.planning",
    "report": "tacitly.reporting",
    "save": "tacitly.model_folder",
    "subspace_distance": "tacitly.linalg",
    **{name: home for method in REGISTRY.values() if not method.network for name, home in method.homes.items()},
}
_MODULES = {
    "audit": "tacitly.audit",
    "datasets": "tacitly.datasets",
    "neural": "tacitly.neural",
    "theory": "tacitly.theory",
}

__all__ = [*_HOMES, *_MODULES]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    if name in _MODULES:
        return importlib.import_module(_MODULES[name])
    import difflib  # not imported at every start

    meant = difflib.get_close_matches(name, __all__, 1)
    also = f". Did you mean {meant[0]!r}?" if meant else ""
    raise AttributeError(f"module 'tacitly' has no attribute {name!r}{also}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
