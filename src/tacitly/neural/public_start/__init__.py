"""Public starting points for a body, learned from synthetic images."""
