"""Capture and replay of graphs.

Above: `hearthd.device.dispatch.commands`. Below: `hearthd.device.launch.commands`.
"""
