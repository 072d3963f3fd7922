"""Private FedRep's classifier (Snedeker et al. 2025, Algorithm 3): a basis chosen by margins under pure ε."""
