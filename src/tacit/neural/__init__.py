"""Networks: a shared body learned under user-level differential privacy, a private head a user (extra ``neural``)."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tacit.neural.baselines import FedAvg as FedAvg
    from tacit.neural.baselines import LocalHeads as LocalHeads
    from tacit.neural.baselines import MeanRegularised as MeanRegularised
    from tacit.neural.baselines import TwoHeads as TwoHeads
    from tacit.neural.centaur import Centaur as Centaur
    from tacit.neural.frameworks import PromptLearning as PromptLearning
    from tacit.neural.frameworks import full_fine_tuning as full_fine_tuning
    from tacit.neural.frameworks import representation_learning as representation_learning
    from tacit.neural.frameworks import single_model as single_model
    from tacit.neural.low_rank_sparse import LowRankSparse as LowRankSparse
    from tacit.neural.made_up import made_up_images as made_up_images
    from tacit.neural.made_up_users import made_up_networks as made_up_networks
    from tacit.neural.networks import Picture as Picture
    from tacit.neural.networks import Shared as Shared
    from tacit.neural.networks import deep as deep
    from tacit.neural.networks import lenet as lenet
    from tacit.neural.networks import linear as linear
    from tacit.neural.networks import mlp as mlp
    from tacit.neural.networks import public_head as public_head
    from tacit.neural.pretraining import contrast as contrast
    from tacit.neural.pretraining import public_directions as public_directions
    from tacit.neural.progress_bar import progress as progress
    from tacit.neural.update import LocalTraining as LocalTraining

# One by one when they are first used: the engine and the networks need PyTorch and NumPy alone.
_HOMES = {
    "Centaur": "centaur",
    "FedAvg": "baselines",
    "LocalHeads": "baselines",
    "LocalTraining": "update",
    "LowRankSparse": "low_rank_sparse",
    "MeanRegularised": "baselines",
    "Picture": "networks",
    "PromptLearning": "frameworks",
    "Shared": "networks",
    "TwoHeads": "baselines",
    "contrast": "pretraining",
    "deep": "networks",
    "full_fine_tuning": "frameworks",
    "lenet": "networks",
    "linear": "networks",
    "made_up_images": "made_up",
    "made_up_networks": "made_up_users",
    "mlp": "networks",
    "progress": "progress_bar",
    "public_directions": "pretraining",
    "public_head": "networks",
    "representation_learning": "frameworks",
    "single_model": "frameworks",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        home = importlib.import_module(f"{__name__}.{_HOMES[name]}")
    except ModuleNotFoundError as error:
        if error.name == "torch":
            raise ModuleNotFoundError("networks need PyTorch: pip install 'tacit[neural]'.", name="torch") from None
        raise
    return getattr(home, name)


def __dir__() -> list[str]:
    return sorted(__all__)
