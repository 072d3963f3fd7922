"""Ready-made networks."""
