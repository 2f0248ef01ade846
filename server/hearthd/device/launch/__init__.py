"""Modules, arguments and launches of kernels.

Above: `hearthd.device.graphs`. Below: `hearthd.device.transfers`.
"""
