"""Low rank plus sparse for networks (AMHT-LRS, appendix B.2)."""
