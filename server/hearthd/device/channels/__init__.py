"""Connections of clients to the device process: lanes, shared-memory segments, stripes.

Above: `hearthd.device.process`. Below: `hearthd.device.fast_path`.
"""
