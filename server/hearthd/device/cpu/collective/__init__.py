"""Collectives of virtual devices: communicators, and the exchange through shared memory that implements them.

Owns the segment that the ranks share, and the calls into the library of `exchange/`. Below `hearthd.device.cpu.server`.
"""
