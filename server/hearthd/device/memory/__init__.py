"""Allocation, reservation and deferred release of device memory.

Above: `hearthd.device.transfers`. Below: `hearthd.device.profiling`.
"""
