"""Linear mixed effects under user-level differential privacy: the population is a prior, a user is a posterior."""
