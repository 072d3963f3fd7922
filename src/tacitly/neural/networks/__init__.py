"""Predefined networks."""
