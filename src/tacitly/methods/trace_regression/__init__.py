"""DP-RGrad (Zha 2024): private low-rank trace regression."""
