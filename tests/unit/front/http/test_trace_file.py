"""Conversion of a packed trace to Chrome's Trace Event Format."""

from __future__ import annotations

import gzip
import json
import zlib

import pytest

from hearth_proto.v1 import commands_pb2
from hearthd.front.http.trace_file import convert


def test_a_trace_becomes_a_chart_or_an_error() -> None:
    result = commands_pb2.TraceResult(epoch_ns=5, dropped=1)
    result.events.add(name="launch", kernel="k", started_ns=10, ended_ns=30, seq=1)
    packed = zlib.compress(result.SerializeToString())
    chart = json.loads(gzip.decompress(convert(packed, "device 0: x")))
    assert {entry["name"] for entry in chart["traceEvents"] if entry["ph"] == "X"} == {"k"}
    assert chart["otherData"] == {"epoch_unix_ns": "5", "dropped": 1, "device": "device 0: x"}
    for bad in (b"", b"junk", packed[:-3], zlib.compress(b"\xff" * 50), zlib.compress(bytes(80 << 20), 9)):
        with pytest.raises(Exception, match=r"trace|pars|wire"):
            convert(bad, "x")
