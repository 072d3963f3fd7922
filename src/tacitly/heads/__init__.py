"""Heads: personal models, computed locally from the public model and one user's own rows."""

WIRE = (
    "glm:LossHeads", "losses:Loss", "own_weights:HeadsWithOwnWeights", "population:HeadPrior",
    "population:PopulationHeads", "ridge:RidgeHeads",
)  # fmt: skip
"""Classes that may travel to sites (:mod:`tacitly.federation.allowed`)."""
