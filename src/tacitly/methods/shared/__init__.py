"""Releases that several methods make: whitening, direction votes, norm histograms."""

WIRE = (
    "direction_votes:ClassVote",
    "direction_votes:DirectionVote",
    "norm_histogram:NormHistogram",
    "whitening:FeatureMoment",
    "whitening:Whitening",
)
"""Classes that may travel to sites (:mod:`tacitly.federation.allowed`)."""
