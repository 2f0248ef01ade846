"""Connections that have shown no credential yet, on every listener: how many there may be, for how long, and how much
they may send.

Owns: the limits per listener, per peer and in all (`limiter`), the descriptors that they are cut to (`descriptors`),
peers that misbehave (`penalties`), and the guard of the gRPC listeners (`guard`), which Python cannot ask at accept,
with what the kernel holds back for it (`holding`). Covers connections, not messages: what a message may hold before its
credential is known belongs to admission.

Above: `hearthd.front.audit`. Below: `hearthd.front.gpu`.
"""
