"""Translation of CUDA C++ to C++ that the host's compiler accepts.

Reads a preprocessed source, refuses what cannot run, and rewrites the rest.

Owns tokens, declarations, the rewriting, and the compiler's messages in the user's terms. Does not own the compiler and
its options (`hearthd.device.cpu.compiler`, above), nor the headers that the rewritten text needs (`include/`).
"""
