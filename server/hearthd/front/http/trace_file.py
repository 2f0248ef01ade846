"""Converter process: turns a packed trace into Chrome's Trace Event Format.

A separate process, because 100,000 events take seconds, which the front with its one event loop has not.

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

from hearth_proto.traces import chart_of, events_of, facts, kernels_of
from hearth_proto.v1 import commands_pb2

MOST = 20 << 20
"""Bytes of a TraceResult: device processes keep traces shorter."""
MEMORY = 4 << 30
"""Address space: what a device process packed is not trusted to need less."""
SECONDS = 120
"""The limit on CPU time."""
PIECE = 500
"""Entries that are written together."""


def convert(packed: bytes, title: str) -> bytes:
    """Raises ValueError or DecodeError for what is no trace."""
    unpacker = zlib.decompressobj()
    try:
        data = unpacker.decompress(packed, MOST)
    except zlib.error as error:
        raise ValueError(f"a trace cannot be unpacked: {error}") from None
    if unpacker.unconsumed_tail or not unpacker.eof:
        raise ValueError(f"a trace is incomplete, or has more than {MOST} bytes")
    result = commands_pb2.TraceResult.FromString(data)
    packer = zlib.compressobj(1, wbits=31)
    parts = [packer.compress(b'{"traceEvents":[')]
    entries = chart_of(title, events_of(result), kernels_of(result))
    comma = ""
    while piece := list(itertools.islice(entries, PIECE)):
        parts.append(packer.compress((comma + json.dumps(piece, separators=(",", ":"))[1:-1]).encode()))
        comma = ","
    rest = json.dumps(facts(title, epoch_ns=result.epoch_ns, dropped=result.dropped), separators=(",", ":"))
    parts += [packer.compress(f"],{rest[1:]}".encode()), packer.flush()]
    return b"".join(parts)


if __name__ == "__main__":
    gc.disable()  # it would look through all of a trace again and again
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    sys.stdout.buffer.write(convert(sys.stdin.buffer.read(), sys.argv[1]))
