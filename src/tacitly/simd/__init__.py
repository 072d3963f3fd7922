"""Compiled SIMD building blocks that several kernels share."""
