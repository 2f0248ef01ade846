"""The audit log: its entries, keys, anchors and verification.

Above: `hearthd.front.sessions`. Below: `hearthd.front.connections`.
"""
