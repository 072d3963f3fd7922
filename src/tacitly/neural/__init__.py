"""Networks: a shared body learned under user-level differential privacy, a private head a user (extra ``neural``)."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tacitly.neural.centaur.baselines import FedAvg as FedAvg
    from tacitly.neural.centaur.baselines import LocalHeads as LocalHeads
    from tacitly.neural.centaur.baselines import MeanRegularised as MeanRegularised
    from tacitly.neural.centaur.baselines import TwoHeads as TwoHeads
    from tacitly.neural.centaur.estimator import Centaur as Centaur
    from tacitly.neural.engine.update import LocalTraining as LocalTraining
    from tacitly.neural.low_rank_sparse.estimator import LowRankSparse as LowRankSparse
    from tacitly.neural.low_rank_sparse.frameworks import PromptLearning as PromptLearning
    from tacitly.neural.low_rank_sparse.frameworks import full_fine_tuning as full_fine_tuning
    from tacitly.neural.low_rank_sparse.frameworks import representation_learning as representation_learning
    from tacitly.neural.low_rank_sparse.frameworks import single_model as single_model
    from tacitly.neural.low_rank_sparse.synthetic_users import synthetic_networks as synthetic_networks
    from tacitly.neural.networks.architectures import FlatToImage as FlatToImage
    from tacitly.neural.networks.architectures import LinearWithSkip as LinearWithSkip
    from tacitly.neural.networks.architectures import conv_features as conv_features
    from tacitly.neural.networks.architectures import identity_head as identity_head
    from tacitly.neural.networks.architectures import lenet as lenet
    from tacitly.neural.networks.architectures import linear as linear
    from tacitly.neural.networks.architectures import mlp as mlp
    from tacitly.neural.progress_bar import progress as progress
    from tacitly.neural.public_start.pretraining import contrast as contrast
    from tacitly.neural.public_start.pretraining import public_directions as public_directions
    from tacitly.neural.public_start.synthetic_images import synthetic_images as synthetic_images

# One by one when they are first used: the engine and the networks need PyTorch and NumPy alone.
_HOMES = {
    "Centaur": "centaur.estimator",
    "FedAvg": "centaur.baselines",
    "FlatToImage": "networks.architectures",
    "LinearWithSkip": "networks.architectures",
    "LocalHeads": "centaur.baselines",
    "LocalTraining": "engine.update",
    "LowRankSparse": "low_rank_sparse.estimator",
    "MeanRegularised": "centaur.baselines",
    "PromptLearning": "low_rank_sparse.frameworks",
    "TwoHeads": "centaur.baselines",
    "contrast": "public_start.pretraining",
    "conv_features": "networks.architectures",
    "full_fine_tuning": "low_rank_sparse.frameworks",
    "identity_head": "networks.architectures",
    "lenet": "networks.architectures",
    "linear": "networks.architectures",
    "mlp": "networks.architectures",
    "progress": "progress_bar",
    "public_directions": "public_start.pretraining",
    "representation_learning": "low_rank_sparse.frameworks",
    "single_model": "low_rank_sparse.frameworks",
    "synthetic_images": "public_start.synthetic_images",
    "synthetic_networks": "low_rank_sparse.synthetic_users",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        home = importlib.import_module(f"{__name__}.{_HOMES[name]}")
    except ModuleNotFoundError as error:
        if error.name == "torch":
            raise ModuleNotFoundError("networks need PyTorch: pip install 'tacitly[neural]'.", name="torch") from None
        raise
    return getattr(home, name)


def __dir__() -> list[str]:
    return sorted(__all__)
