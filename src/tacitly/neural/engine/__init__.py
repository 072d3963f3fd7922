"""Computes users' updates: many at once on a GPU, one by one on a few workers on a CPU."""
