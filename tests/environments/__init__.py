"""Runs the suite, or the tests that a condition concerns, under the conditions of other people's machines.

Covers where the clone lies, who runs it, what the kernel offers, how much shared memory there is, which Python it is
and what runs beside it; not the accelerators (`tests/gpu`). `table.py` holds the environments, one entry each;
`__main__.py` is the command line.
"""
