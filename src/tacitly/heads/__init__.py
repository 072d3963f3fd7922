"""Personal models: fitted at home, from the public model and one user's own rows."""

WIRE = ("glm:LossHeads", "losses:Loss", "population:HeadPrior", "population:PopulationHeads", "ridge:RidgeHeads")
"""Classes that may travel to sites (:mod:`tacitly.federation.allowed`)."""
