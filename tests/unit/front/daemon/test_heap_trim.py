"""When freed memory is given back."""

from __future__ import annotations

from hearthd.front.daemon.heap_trim import HeapTrimming


def test_once_after_each_time_that_there_were_sessions() -> None:
    thrift = HeapTrimming(quiet=5.0)
    seen = [(0, 0.0), (0, 9.0), (3, 10.0), (0, 11.0), (0, 15.9), (0, 16.0), (0, 17.0), (0, 30.0), (1, 31.0), (0, 32.0)]
    due = [now for sessions, now in seen if thrift.due(sessions, now)]
    assert due == [16.0]
    assert not thrift.due(2, 36.0) and not thrift.due(0, 37.0), "whoever comes back begins the wait again"
    assert not thrift.due(0, 41.9) and thrift.due(0, 42.0)
