"""Dispatches: upload, launch and download as one command.

Above: `hearthd.device.collectives`. Below: `hearthd.device.graphs`.
"""
