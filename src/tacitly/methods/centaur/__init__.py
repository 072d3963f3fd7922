"""CENTAUR (Shen et al. 2023) for linear models."""
