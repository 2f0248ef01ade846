"""Encoding of commands and decoding of replies, without protobuf objects on the hot path.

Above: `hearth.transport`. Pure: no sockets, threads or clocks.
"""
