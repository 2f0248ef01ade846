"""Output of a compiler: object files and images, read without a linker or a debugger.

Owns the layout of an image, static shared memory from an object's relocations, and lines from its debug information.
Below `hearthd.device.cpu.compiler` and `hearthd.device.cpu.module`.
"""
