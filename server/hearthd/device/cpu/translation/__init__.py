"""CUDA C++ to C++: reads a preprocessed source, refuses what cannot run, and rewrites the rest for a host's compiler.

Owns tokens, declarations, the rewriting and the compiler's messages in the user's terms. Not the compiler itself or its
options (`hearthd.device.cpu.compiler`, above), nor the headers that the rewritten text needs (`include/`).
"""
