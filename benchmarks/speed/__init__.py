"""Speed comparisons: ratios measured in one run."""
