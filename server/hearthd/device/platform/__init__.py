"""What a device process is to the system that it runs on: event loop, log, sandbox, descriptors and counters.

The lowest layer of `hearthd.device`. Above: `hearthd.device.backend`.
"""
