"""Modules, arguments and launches of kernels.

Above: `hearthd.device.graphs.commands`. Below: `hearthd.device.transfers.transfers`.
"""
