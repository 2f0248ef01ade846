"""Allocation, reservation and deferred free of device memory.

Above: `hearthd.device.transfers`. Below: `hearthd.device.profiling`.
"""
