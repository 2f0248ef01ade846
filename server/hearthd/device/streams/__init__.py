"""Pooled CUDA streams, the order of work on them, and its completion.

Above: `hearthd.device.flows`. Below: `hearthd.device.compiler`.
"""
