"""Connections of clients to the device process: lanes, shared-memory segments, stripes.

Above: `hearthd.device.cuda` and `hearthd.device.cpu`. Below: `hearthd.device.scheduler`.
"""
