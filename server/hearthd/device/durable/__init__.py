"""Durable buffers and snapshots on disk.

Above: `hearthd.device.scheduler`. Below: `hearthd.device.ipc`.
"""
