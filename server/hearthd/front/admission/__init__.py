"""Admission of calls: whose call it is, decided on its headers, and bounds on its request before it is decoded.

Covers gRPC and framed calls alike: the gate in front of every method, limits on wire bytes and fields, deadlines of
requests, the account of bytes that callers without an accepted credential hold. Does not cover connections, handshakes
and HTTP/2 itself, nor rights and quotas, which the services check.

Above: `hearthd.front.rpc`. Below: `hearthd.front.peers`.
"""
