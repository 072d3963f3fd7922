"""The estimators a user sees, one file each; :mod:`tacit.estimators.base` is what they have in common."""

from tacit.estimators.altmin import PrivateAltMin
from tacit.estimators.centaur import Centaur
from tacit.estimators.fedpower import FedPower
from tacit.estimators.fedrep import PrivateFedRep

__all__ = ["Centaur", "FedPower", "PrivateAltMin", "PrivateFedRep"]
