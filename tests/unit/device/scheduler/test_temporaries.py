"""Temporaries that are executed immediately: random programs have the same results as with operations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hearth_proto.v1 import commands_pb2 as c
from tests.support.device.lane_rig import add
from tests.support.device.rig import Command
from tests.support.device.temporaries_rig import Ways, run


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[Ways, Ways]]:
    both = Ways(), Ways(at_once=False)
    yield both
    for ways in both:
        ways.stop()


HANDLES = st.integers(1, 4)
STREAMS = st.sampled_from([0] * 8 + [5] * 4 + [9])
EMPTY = 5
"""The buffer of zero bytes, if it exists. No launch uses it: a kernel that writes to it would end its process."""

SIZES = st.sampled_from([8, 8, 8, 64, 64, 1000, 5000, 1 << 40])
OFFSETS = st.sampled_from([0, 0, 0, 0, 8, 3, 64, 1 << 40])
PARTS = st.lists(
    st.one_of(st.builds(c.Allocate.Part, buffer=HANDLES, size=SIZES), st.just(c.Allocate.Part(buffer=EMPTY))),
    min_size=1,
    max_size=3,
)
ALLOCATE = st.one_of(
    *[st.builds(c.Allocate, buffer=HANDLES, size=SIZES)] * 4,
    st.builds(c.Allocate, parts=PARTS),
    st.builds(c.Allocate, buffer=st.sampled_from([0, 1]), size=SIZES, parts=PARTS),
    st.builds(c.Allocate, size=SIZES),
    st.just(c.Allocate(buffer=EMPTY)),
)
FREE = st.builds(c.Free, buffers=st.lists(st.integers(0, 6), max_size=3))
FILL = st.builds(
    c.Fill,
    buffer=st.integers(0, 7),
    offset=OFFSETS,
    size=SIZES | st.just(0),
    pattern=st.sampled_from([b"\1", b"\0\0\0\0", b"123", b""]),
)
ROWS = st.sampled_from([None, None, None, c.Rows(width=4, rows=2, pitch=8)])
WRITE = st.builds(
    lambda buffer, offset, data, rows: c.Write(buffer=buffer, offset=offset, data=data, rows=rows),
    HANDLES,
    OFFSETS,
    st.sampled_from([b"12345678", b"12345678", bytes(64), b"", bytes(1000)]),
    ROWS,
)
COPY = st.builds(c.Copy, destination=HANDLES, source=HANDLES, size=st.sampled_from([8, 64]))
LAUNCH = st.builds(lambda what, buffer, stream: add(what, buffer=buffer, stream=stream), HANDLES, HANDLES, STREAMS)
WINDOW = st.sampled_from([c.ALLOCATION_MODE_PERSISTENT, c.ALLOCATION_MODE_AUTO])


def asked(kind: str, commands: st.SearchStrategy[Any], requests: Sequence[int] = (0, 0, 0, 0, 1)) -> Any:
    return st.builds(
        lambda command, stream, request: Command(request=request, stream=stream, **{kind: command}),
        commands,
        STREAMS,
        st.sampled_from(requests),
    )


OTHERS = st.one_of(
    LAUNCH,
    asked("copy", COPY),
    asked("set_allocation_mode", st.builds(c.SetAllocationMode, mode=WINDOW)),
    asked("memory_cleanup", st.just(c.MemoryCleanup())),
    asked("memory_usage", st.just(c.MemoryUsage()), [1]),
    asked("read", st.builds(c.Read, buffer=HANDLES, size=st.just(8)), [1]),
    asked("create_stream", st.builds(c.CreateStream, stream=st.just(5))),
    asked("destroy_stream", st.builds(c.DestroyStream, stream=st.just(5))),
    asked("begin_capture", st.builds(c.BeginCapture, graph=st.just(1))),
    asked("end_capture", st.builds(c.EndCapture, graph=st.just(1))),
    asked("destroy_graph", st.builds(c.DestroyGraph, graph=st.just(1))),
    asked("prepare", st.builds(lambda one: c.Prepare(prepared=1, launches=one.launches), LAUNCH)),
    asked("destroy_prepared", st.builds(c.DestroyPrepared, prepared=st.just(1))),
)
OFTEN = [asked("allocate", ALLOCATE)] * 6 + [asked("free", FREE)] * 4
OFTEN += [asked("fill", FILL), asked("write", WRITE)] * 3 + [OTHERS] * 4
COMMANDS = st.sampled_from(OFTEN).flatmap(lambda one: one)
BEGINNING = [Command(allocate=c.Allocate(buffer=handle, size=64)) for handle in (1, 2)]


@given(st.data())
@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_programs_give_same_results(pair: tuple[Ways, Ways], data: st.DataObject) -> None:
    program = data.draw(st.lists(st.lists(COMMANDS, min_size=1, max_size=8), min_size=1, max_size=5))
    program = [BEGINNING, *program]
    assert run(pair[0], program, 0) == run(pair[1], program, 0)


@given(st.data())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_programs_give_same_results_if_memory_is_scarce(pair: tuple[Ways, Ways], data: st.DataObject) -> None:
    """Commands run one by one, because whether a waiting allocation is served or refused depends on the timing of the
    commands directly after it."""
    program = data.draw(st.lists(st.lists(COMMANDS, min_size=1, max_size=1), min_size=1, max_size=14))
    assert run(pair[0], program, 6144) == run(pair[1], program, 6144)


def temporary(handle: int) -> list[c.Command]:
    return [
        Command(allocate=c.Allocate(buffer=handle, size=1000)),
        Command(fill=c.Fill(buffer=handle, size=1000, pattern=b"\0")),
        Command(write=c.Write(buffer=handle, offset=8, data=b"12345678")),
        add(1, buffer=handle),
        Command(free=c.Free(buffers=[handle])),
    ]


def test_most_commands_are_executed_immediately(pair: tuple[Ways, Ways]) -> None:
    """Otherwise the comparison would prove nothing."""
    short, long = pair
    del short.taken[:]
    program = [[command for handle in range(1, 21) for command in temporary(handle)]] * 2
    assert run(short, program, 0) == run(long, program, 0)
    assert [short.taken.count(kind) for kind in ("fill", "write", "free")] == [40] * 3
    assert short.taken.count("allocate") == 39, "the first one is granted the session's handles"
    assert not long.taken
