"""Differential tests of the CPU backend: random CUDA kernels, each with a NumPy reference of the same meaning.

A seed determines a *program* (`programs`): some kernels, and launches of each. A kernel (`kernels`) consists of *steps*
(`*_steps`), which change the variable `x` of each thread, and of *forms* (`*_forms`): the ways in which C++ code can
call a body that consists of further steps. `generator` draws both at random. A step is CUDA text and the function that
does the same to all threads of the reference `machine`.

`processes` compares the kernels with their references on the CPU backend, without a daemon; `clients` does so through a
daemon on any device; `nvrtc` only compiles them. Command line: `python -m tests.support.cpu.differential --help`.
"""
