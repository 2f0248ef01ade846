"""Runs the whole suite, or the tests that a condition affects, under conditions of other machines.

Covers the location of the clone, the user, features of the kernel, the amount of shared memory, the Python version, and
other load on the machine; not the accelerators (`tests/gpu`). `table.py` holds the environments, one entry each;
`__main__.py` is the command line.
"""
