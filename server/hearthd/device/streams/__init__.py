"""Pooled CUDA streams, the order of work on them, and its completion.

Above: `hearthd.device.session`. Below: `hearthd.device.compiler`.
"""
