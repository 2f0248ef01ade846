"""Profile of one launch, of pipelined launches and of one small copy: `python -m tests.bench.profile`.

Probes at the ends of a few functions, in the client and in the device process, divide the time of an operation into
steps. A second run counts the calls of each step.
"""
