"""AMHT-LRS (Pal et al. 2024): a shared basis plus a few personal coordinates per user."""
