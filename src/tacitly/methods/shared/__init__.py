"""Releases that several methods make: whitening, direction votes, norms, the population."""

WIRE = (
    "central:CentralStep",
    "central:Correction",
    "column_scales:ColumnScales",
    "direction_votes:ClassVote",
    "direction_votes:DirectionVote",
    "norm_histogram:NormHistogram",
    "typical_norm:TypicalNorm",
    "whitening:FeatureMoment",
    "whitening:ScaledMoment",
    "whitening:Whitening",
)
"""Classes that may travel to sites (:mod:`tacitly.federation.allowed`)."""
