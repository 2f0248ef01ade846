"""Platform of a device process: event loop, log, sandbox, descriptors and counters.

The lowest layer of `hearthd.device`. Above: `hearthd.device.backend`.
"""
