"""Connections to a daemon and to its device processes: gRPC, framed calls, lanes, stripes, segments of shared memory.

Covers the sockets, the wait for an answer on them, backoff, and the errors of unreachable daemons; not the protocol of
a session (`hearth.session`), nor the choice of a route for bulk data (`hearth.transfer`).

Above: `hearth.session`. Below: `hearth.codec`.
"""
