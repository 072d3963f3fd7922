"""Networks: a shared body learned under user-level differential privacy, a private head a user (extra ``neural``)."""

from tacit.neural.centaur import Centaur
from tacit.neural.networks import lenet, linear, mlp
from tacit.neural.update import LocalTraining

__all__ = ["Centaur", "LocalTraining", "lenet", "linear", "mlp"]
