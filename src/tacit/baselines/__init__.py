"""What a user would run instead."""

from tacit.baselines.fedrep import FedRep
from tacit.baselines.fine_tuned import CentralModel, FullFineTuning, PromptLearning
from tacit.baselines.local import LocalModels
from tacit.baselines.rgrad import NuclearNorm, RGrad
from tacit.baselines.single import SingleModel

__all__ = [
    "CentralModel",
    "FedRep",
    "FullFineTuning",
    "LocalModels",
    "NuclearNorm",
    "PromptLearning",
    "RGrad",
    "SingleModel",
]
