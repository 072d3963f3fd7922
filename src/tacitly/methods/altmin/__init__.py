"""Private alternating minimisation (Jain et al. 2021)."""
