"""Capture and replay of graphs.

Above: `hearthd.device.dispatch`. Below: `hearthd.device.launch`.
"""
