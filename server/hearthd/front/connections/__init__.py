"""Limits on connections that have shown no credential yet, called strangers.

On every listener, the number of strangers, their lifetime, and the bytes that they may send are limited.

Owns: the limits for each listener, for each peer and in total (`limiter`); the descriptors to which the limits are
adjusted (`descriptors`); peers that misbehave (`penalties`); the guard of the gRPC listeners (`guard`), whose
connections Python does not accept itself; and the data that the kernel holds back for the guard (`holding`). Covers
connections, not messages: the size of a message before its credential is known belongs to `hearthd.front.admission`.

Above: `hearthd.front.audit`. Below: `hearthd.front.gpu`.
"""
