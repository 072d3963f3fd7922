"""Public initial values of a body, pretrained on synthetic images."""
