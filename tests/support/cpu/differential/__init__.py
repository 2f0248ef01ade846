"""Differential tests of the CPU backend: random CUDA kernels and a NumPy reference drawn from the same tree."""
