"""Admission of calls: identifies the caller from the headers, and limits the request before it is decoded.

Covers gRPC and framed calls: the gate in front of every method, limits on wire bytes and fields, time limits of
requests, and the account of bytes held for callers without an accepted credential. Does not cover connections,
handshakes and HTTP/2 itself, or rights and quotas, which the services check.

Above: `hearthd.front.rpc`. Below: `hearthd.front.peers`.
"""
