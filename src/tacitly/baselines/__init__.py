"""Baselines: what a user would run instead. Modules are loaded on first use, for example by ``tacitly.FedRep``."""
