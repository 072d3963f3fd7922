"""Compiled SIMD building blocks shared by several kernels."""
