"""The races: ratios measured in one run."""
