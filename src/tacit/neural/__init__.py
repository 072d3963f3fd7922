"""Networks: a shared body learned under user-level differential privacy, a private head a user (extra ``neural``)."""

from tacit.neural.baselines import FedAvg, LocalHeads, MeanRegularised, TwoHeads
from tacit.neural.centaur import Centaur
from tacit.neural.frameworks import PromptLearning, full_fine_tuning, representation_learning, single_model
from tacit.neural.low_rank_sparse import LowRankSparse
from tacit.neural.made_up import made_up_images
from tacit.neural.made_up_networks import made_up_networks
from tacit.neural.networks import Picture, Shared, deep, lenet, linear, mlp, public_head
from tacit.neural.pretraining import contrast, public_directions
from tacit.neural.progress import progress
from tacit.neural.update import LocalTraining

__all__ = [
    "Centaur",
    "FedAvg",
    "LocalHeads",
    "LocalTraining",
    "LowRankSparse",
    "MeanRegularised",
    "Picture",
    "PromptLearning",
    "Shared",
    "TwoHeads",
    "contrast",
    "deep",
    "full_fine_tuning",
    "lenet",
    "linear",
    "made_up_images",
    "made_up_networks",
    "mlp",
    "progress",
    "public_directions",
    "public_head",
    "representation_learning",
    "single_model",
]
