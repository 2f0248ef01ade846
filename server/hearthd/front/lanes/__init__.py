"""Sockets that are handed over to device processes: lanes and stripes.

Above: `hearthd.front.peers`. Below: `hearthd.front.auth`.
"""
