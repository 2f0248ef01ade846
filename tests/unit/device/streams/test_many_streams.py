"""The cost of a session with many streams depends only on the streams in use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hearth_proto.reasons import Reason, Refusal
from hearth_proto.v1 import commands_pb2 as c
from hearthd.device.cpu.server import CpuServer
from hearthd.device.session.replay_cache import ReplayCache
from hearthd.device.session.stream import LogicalStream
from hearthd.device.session.stream_table import StreamTable
from hearthd.device.streams.stream_errors import StreamFailure
from hearthd.device.streams.track import PooledStream
from hearthd.shared.device_spec import DeviceSpec
from tests.support.device.rig import Rig

STREAMS = 300


class Counting(CpuServer):
    """Counts the events that are recorded."""

    recorded = 0

    def record(self, stream: Any, *, timing: bool = False) -> Any:
        self.recorded += 1
        return super().record(stream, timing=timing)


@pytest.fixture
def rig() -> Iterator[Rig[Counting]]:
    rig = Rig(DeviceSpec(0, "cpu", 0), Counting)
    yield rig
    rig.close()


def with_streams(rig: Rig[Counting]) -> None:
    rig.batch(*(c.Command(create_stream=c.CreateStream(stream=number)) for number in range(1, STREAMS)))
    rig.batch(
        c.Command(allocate=c.Allocate(buffer=1, size=64)),
        *(c.Command(stream=number, fill=c.Fill(buffer=1, size=64, pattern=b"\1")) for number in range(STREAMS)),
    )
    sync(rig)


def sync(rig: Rig[Counting]) -> None:
    result = rig.call(sync=c.Sync(all_streams=True))
    assert not result.HasField("error"), result.error.message


def test_wait_for_all_streams_polls_busy_streams_only(rig: Rig[Counting]) -> None:
    with_streams(rig)
    sync(rig)
    before = rig.server.recorded
    sync(rig)
    assert rig.server.recorded == before
    rig.batch(c.Command(stream=7, fill=c.Fill(buffer=1, size=64, pattern=b"\2")))
    sync(rig)
    assert 0 < rig.server.recorded - before <= 4


def test_failure_of_one_stream_of_many_is_raised_once(rig: Rig[Counting]) -> None:
    with_streams(rig)
    rig.batch(c.Command(stream=9, fill=c.Fill(buffer=1, offset=60, size=8, pattern=b"\2")))
    error = rig.call(sync=c.Sync(all_streams=True)).error
    assert "fill" in error.message and "[60..68)" in error.message
    sync(rig)


def test_failure_of_a_destroyed_stream_is_raised_once(rig: Rig[Counting]) -> None:
    with_streams(rig)
    rig.batch(
        c.Command(stream=9, fill=c.Fill(buffer=1, offset=60, size=8, pattern=b"\2")),
        c.Command(destroy_stream=c.DestroyStream(stream=9)),
    )
    assert "[60..68)" in rig.call(sync=c.Sync(all_streams=True)).error.message
    sync(rig)


def test_failure_after_the_end_of_a_stream_goes_to_its_successor() -> None:
    stream: Any = object()
    track = PooledStream(0, stream, 0)
    destroyed, default = LogicalStream(1, track), LogicalStream(0, track)
    first, late = (StreamFailure("fill", 1, 1, index, Refusal(Reason.INTERNAL, "no")) for index in range(2))
    destroyed.failed(first)
    destroyed.hand_over(default)
    destroyed.failed(late)  # work that was under way when the stream was destroyed
    assert not destroyed.errors and default.errors.pop_all() == [first, late]


# ---- the table ----

Change = tuple[str, int, int]
changes = st.lists(
    st.tuples(
        st.sampled_from(["put", "pop", "end", "join", "leave", "fail", "tell"]), st.integers(1, 5), st.integers(0, 2)
    ),
    max_size=40,
)


@given(changes)
def test_stream_table_agrees_with_a_scan_of_all_streams(program: list[Change]) -> None:
    stream: Any = object()
    tracks = [PooledStream(index, stream, 0) for index in range(3)]
    table = StreamTable(ReplayCache())
    ending: list[LogicalStream] = []
    for what, handle, number in program:
        entry = table.get(handle)
        if what == "end" and ending:
            table.leave(ending.pop(0))
        if what == "put" and entry is None:
            table.put(handle, LogicalStream(handle, tracks[number]))
        elif entry is None:
            continue
        elif what == "pop":
            ending.append(table.pop(handle))
        elif what in ("join", "leave"):
            entry.collectives = (tracks[number],) if what == "join" else ()
        elif what == "fail":
            entry.failed(StreamFailure("fill", handle, 1, 1, Refusal(Reason.INTERNAL, "no")))
        else:
            entry.errors.pop_all()
        live = list(table.items.values())
        assert {each.index for each in table.tracks} == {each.track.index for each in (*live, *ending)}
        assert len(table.tracks) == len(set(table.tracks))
        assert set(table.collectives) == {track for each in live for track in each.collectives}
        assert {each for each in live if each.errors or each.collectives} <= set(table.marked)
