"""Personal models: fitted at home, from the public model and one user's own rows."""
