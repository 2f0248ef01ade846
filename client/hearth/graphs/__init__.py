"""Recorded work: graphs, their nodes and conditional bodies, and prepared launches.

Covers neither functions and their arguments nor dispatches. Above: `hearth.base_device`. Below: `hearth.kernels`.
"""
