"""Compiled building blocks that several kernels share."""
