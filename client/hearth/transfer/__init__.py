"""Bulk transfers: the choice of a route, and the routes (gRPC streams, stripes, shared memory, pinned memory).

Above: `hearth.endpoint`. Below: `hearth.session`.
"""
