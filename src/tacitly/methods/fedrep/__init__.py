"""Private FedRep (Snedeker et al. 2025): a shared basis, one head per user."""
