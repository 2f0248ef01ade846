"""Dispatches: upload, launch and download as one command.

Above: `hearthd.device.collectives.commands`. Below: `hearthd.device.graphs.commands`.
"""
