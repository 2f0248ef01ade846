"""A session with one daemon: its connection, the queue of commands, replies, errors and resumption.

Covers the protocol between client and front, not the sockets: see `hearth.transport`.

Above: `hearth.transfer`. Below: `hearth.transport`.
"""
