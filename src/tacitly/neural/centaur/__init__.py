"""CENTAUR for networks: a shared body, one head per user."""
