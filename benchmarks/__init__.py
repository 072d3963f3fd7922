"""Benchmarks: one command for every number that the README and the docs quote."""
