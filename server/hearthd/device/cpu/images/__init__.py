"""Output of a compiler: object files and images, read without a linker or a debugger.

Owns the layout of an image, the static shared memory of kernels (from an object's relocations), and source lines (from
debug information). Below `hearthd.device.cpu.compiler` and `hearthd.device.cpu.module`.
"""
