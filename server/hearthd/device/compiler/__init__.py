"""Compilation in separate processes, and the cache of images.

Above: `hearthd.device.streams`. Below: `hearthd.device.outbox`.
"""
