"""Pooled CUDA streams, the order of work on them, and its completion.

Above: `hearthd.device.session.session`. Below: `hearthd.device.compiler.service`.
"""
