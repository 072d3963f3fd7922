"""What a user would run instead."""

from tacitly.baselines.fedrep import FedRep
from tacitly.baselines.fine_tuned import CentralModel, FullFineTuning, PromptLearning
from tacitly.baselines.local import LocalModels
from tacitly.baselines.rgrad import NuclearNorm, RGrad
from tacitly.baselines.single import SingleModel

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
