"""Tickets, and the sockets that are handed over to device processes: lanes, segments and stripes.

Above: `hearthd.front.peers`. Below: `hearthd.front.auth`.
"""
