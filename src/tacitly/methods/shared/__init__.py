"""Releases that several methods make: whitening, direction votes, norm histograms."""
