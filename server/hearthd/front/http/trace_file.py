"""Converter process: converts a packed trace to Chrome's Trace Event Format.

It is a separate process, because 100,000 events take seconds, for which the front's event loop must not be blocked.

Run as ``python -m hearthd.front.http.trace_file TITLE``: reads a TraceResult compressed with zlib (as in `Kind.TRACED`)
from standard input, and writes JSON compressed with gzip to standard output, all of it or nothing.
"""

from __future__ import annotations

import gc
import itertools
import json
import resource
import sys
import zlib

from hearth_proto.traces import chart_of, events_of, file_metadata, kernels_of
from hearth_proto.v1 import commands_pb2

MAX_TRACE_BYTES = 20 << 20
"""Maximum size of a TraceResult in bytes. Device processes keep smaller traces."""
MAX_MEMORY_BYTES = 4 << 30
"""Limit on the address space in bytes, because the data of a device process is not trusted to need less."""
MAX_CPU_SECONDS = 120
"""Limit on CPU time in seconds."""
ENTRIES_PER_WRITE = 500
"""Number of entries that are written together."""


def convert(packed: bytes, title: str) -> bytes:
    """Returns the converted trace, compressed with gzip.

    Raises ValueError or DecodeError if `packed` is not a trace.
    """
    unpacker = zlib.decompressobj()
    try:
        data = unpacker.decompress(packed, MAX_TRACE_BYTES)
    except zlib.error as error:
        raise ValueError(f"a trace cannot be unpacked: {error}") from None
    if unpacker.unconsumed_tail or not unpacker.eof:
        raise ValueError(f"a trace is incomplete, or has more than {MAX_TRACE_BYTES} bytes")
    result = commands_pb2.TraceResult.FromString(data)
    packer = zlib.compressobj(1, wbits=31)
    chunks = [packer.compress(b'{"traceEvents":[')]
    entries = chart_of(title, events_of(result), kernels_of(result))
    comma = ""
    while batch := list(itertools.islice(entries, ENTRIES_PER_WRITE)):
        chunks.append(packer.compress((comma + json.dumps(batch, separators=(",", ":"))[1:-1]).encode()))
        comma = ","
    trailer = json.dumps(file_metadata(title, epoch_ns=result.epoch_ns, dropped=result.dropped), separators=(",", ":"))
    chunks += [packer.compress(f"],{trailer[1:]}".encode()), packer.flush()]
    return b"".join(chunks)


if __name__ == "__main__":
    gc.disable()  # the garbage collector would repeatedly visit all objects of the trace
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (MAX_CPU_SECONDS, MAX_CPU_SECONDS))
    sys.stdout.buffer.write(convert(sys.stdin.buffer.read(), sys.argv[1]))
