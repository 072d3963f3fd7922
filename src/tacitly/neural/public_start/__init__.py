"""Public starting points for a body, pretrained on synthetic images."""
