"""Collective operations and communicators of this device.

Above: `hearthd.device.ipc`. Below: `hearthd.device.dispatch`.
"""
