"""Networks (extra ``neural``): a shared body under user-level differential privacy, one private head per user."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tacitly.methods.registry import discover

if TYPE_CHECKING:
    from tacitly.neural.engine.local_training import LocalTraining as LocalTraining
    from tacitly.neural.low_rank_sparse.frameworks import full_fine_tuning as full_fine_tuning
    from tacitly.neural.low_rank_sparse.frameworks import representation_learning as representation_learning
    from tacitly.neural.low_rank_sparse.frameworks import single_model as single_model
    from tacitly.neural.low_rank_sparse.synthetic_users import synthetic_networks as synthetic_networks
    from tacitly.neural.networks.adapters import LowRankAdapter as LowRankAdapter
    from tacitly.neural.networks.adapters import adapters as adapters
    from tacitly.neural.networks.architectures import FlatToImage as FlatToImage
    from tacitly.neural.networks.architectures import LinearWithSkip as LinearWithSkip
    from tacitly.neural.networks.architectures import conv_features as conv_features
    from tacitly.neural.networks.architectures import identity_head as identity_head
    from tacitly.neural.networks.architectures import lenet as lenet
    from tacitly.neural.networks.architectures import linear as linear
    from tacitly.neural.networks.architectures import mlp as mlp
    from tacitly.neural.networks.blocks import MeanOverPositions as MeanOverPositions
    from tacitly.neural.networks.blocks import Residual as Residual
    from tacitly.neural.networks.blocks import SelfAttention as SelfAttention
    from tacitly.neural.networks.blocks import Tokens as Tokens
    from tacitly.neural.networks.blocks import residual_network as residual_network
    from tacitly.neural.networks.blocks import transformer as transformer
    from tacitly.neural.networks.features import Features as Features
    from tacitly.neural.networks.huggingface import huggingface_encoder as huggingface_encoder
    from tacitly.neural.networks.huggingface import huggingface_rows as huggingface_rows
    from tacitly.neural.networks.images import image_network as image_network
    from tacitly.neural.networks.images import random_filters as random_filters
    from tacitly.neural.networks.views import Views as Views
    from tacitly.neural.progress_bar import progress as progress
    from tacitly.neural.public_start.pretraining import contrast as contrast
    from tacitly.neural.public_start.pretraining import public_directions as public_directions
    from tacitly.neural.public_start.synthetic_images import synthetic_images as synthetic_images

# <methods>
if TYPE_CHECKING:
    from tacitly.neural.centaur.baselines import FedAvg as FedAvg
    from tacitly.neural.centaur.baselines import LocalHeads as LocalHeads
    from tacitly.neural.centaur.baselines import MeanRegularised as MeanRegularised
    from tacitly.neural.centaur.baselines import TwoHeads as TwoHeads
    from tacitly.neural.centaur.estimator import Centaur as Centaur
    from tacitly.neural.low_rank_sparse.estimator import LowRankSparse as LowRankSparse
    from tacitly.neural.low_rank_sparse.frameworks import PromptLearning as PromptLearning
    from tacitly.neural.table_network.estimator import TableNetwork as TableNetwork
# </methods>

# Modules load when a name is first used: the engine and the networks need PyTorch and NumPy alone.
_HOMES = {
    "Features": f"{__name__}.networks.features",
    "FlatToImage": f"{__name__}.networks.architectures",
    "LinearWithSkip": f"{__name__}.networks.architectures",
    "LowRankAdapter": f"{__name__}.networks.adapters",
    "adapters": f"{__name__}.networks.adapters",
    "LocalTraining": f"{__name__}.engine.local_training",
    **dict.fromkeys(
        ("MeanOverPositions", "Residual", "SelfAttention", "Tokens", "residual_network", "transformer"),
        f"{__name__}.networks.blocks",
    ),
    "Views": f"{__name__}.networks.views",
    "contrast": f"{__name__}.public_start.pretraining",
    "conv_features": f"{__name__}.networks.architectures",
    "full_fine_tuning": f"{__name__}.low_rank_sparse.frameworks",
    "huggingface_encoder": f"{__name__}.networks.huggingface",
    "huggingface_rows": f"{__name__}.networks.huggingface",
    "identity_head": f"{__name__}.networks.architectures",
    "image_network": f"{__name__}.networks.images",
    "lenet": f"{__name__}.networks.architectures",
    "linear": f"{__name__}.networks.architectures",
    "mlp": f"{__name__}.networks.architectures",
    "progress": f"{__name__}.progress_bar",
    "public_directions": f"{__name__}.public_start.pretraining",
    "random_filters": f"{__name__}.networks.images",
    "representation_learning": f"{__name__}.low_rank_sparse.frameworks",
    "single_model": f"{__name__}.low_rank_sparse.frameworks",
    "synthetic_images": f"{__name__}.public_start.synthetic_images",
    "synthetic_networks": f"{__name__}.low_rank_sparse.synthetic_users",
    **{name: home for method in discover(__name__).values() for name, home in method.homes.items()},
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        home = importlib.import_module(_HOMES[name])
    except ModuleNotFoundError as error:
        if error.name == "torch":
            raise ModuleNotFoundError("networks need PyTorch: pip install 'tacitly[neural]'.", name="torch") from None
        raise
    return getattr(home, name)


def __dir__() -> list[str]:
    return sorted(__all__)
