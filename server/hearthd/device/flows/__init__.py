"""Transfers under way, as a session holds them, and the segments and stripes that carry their bytes.

Above: `hearthd.device.session`. Below: `hearthd.device.streams`.
"""
