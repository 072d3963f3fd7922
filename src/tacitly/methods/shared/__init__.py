"""Releases that several methods make: whitening, direction votes, norms."""

WIRE = (
    "direction_votes:ClassVote",
    "direction_votes:DirectionVote",
    "norm_histogram:NormHistogram",
    "typical_norm:TypicalNorm",
    "whitening:FeatureMoment",
    "whitening:Whitening",
)
"""Classes that may travel to sites (:mod:`tacitly.federation.allowed`)."""
