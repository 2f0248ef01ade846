"""Dispatch cache: repeated dispatches have the same results from the cache as when they are read again."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from hearth_proto.launches import unpack_layout
from hearth_proto.v1 import commands_pb2 as c
from hearthd.device.dispatch import cache
from hearthd.device.dispatch.cache import CachedDispatch, DispatchCache
from hearthd.device.dispatch.plan import read_bindings

B = c.Binding
A = c.Argument


def reading(known: DispatchCache, command: c.Dispatch) -> tuple[CachedDispatch, bool] | None:
    """Returns the dispatch and True if it was in the cache; None for an invalid dispatch."""
    inputs = [binding.data for binding in command.bindings]
    likeness, found = known.find(command, inputs)
    if found is not None:
        return found, True
    plan, failures = read_bindings(command, inputs, 64)
    return None if failures else (known.add(likeness, command, plan), False)


# Few values for each field, so that many commands are equal, and many differ in one field.
VALUES = st.sampled_from(
    [
        A(raw=b"1234"), A(raw=b"5678"), A(raw=b"12345678"), A(raw=b""), A(int32=5), A(int32=6), A(float32=5), A(),
        A(tensor_map=3), A(tensor_map=4), A(pointer=A.Pointer(buffer=3)), A(pointer=A.Pointer(buffer=3, offset=8)),
        A(pointer=A.Pointer(buffer=4, read_only=True)), A(boolean=False),
    ]
)  # fmt: skip
BINDINGS = st.builds(
    lambda role, size, data, upload, start, length, value: B(
        role=role, size=size, data=data, upload=upload, range_offset=start, range_size=length, value=value
    ),
    st.sampled_from([B.ROLE_VALUE] * 2 + [B.ROLE_INPUT, B.ROLE_OUTPUT, B.ROLE_INPUT_OUTPUT, 0, 9]),
    st.sampled_from([0, 0, 4]),
    st.sampled_from([b"", b"", b"abcd", b"efgh", b"abc"]),
    st.sampled_from([0] * 9 + [7]),
    st.sampled_from([0] * 4 + [1]),
    st.sampled_from([None] * 4 + [0, 1]),
    st.none() | VALUES,
)
COMMANDS = st.builds(
    lambda function, x, block, shared, timeout, iterations, timed, bindings: c.Dispatch(
        function=function, grid=c.Dim3(x=x), block=block, shared_mem=shared, timeout_ns=timeout, iterations=iterations,
        timed=timed, bindings=bindings,
    ),
    st.sampled_from([1, 1, 2]), st.sampled_from([1, 1, 2]), st.sampled_from([None, c.Dim3(x=32), c.Dim3(x=32, y=1)]),
    st.sampled_from([0, 0, 16]), st.sampled_from([0, 0, 9]), st.sampled_from([None, None, 1, 2]), st.booleans(),
    st.lists(BINDINGS, max_size=3),
)  # fmt: skip


@given(st.lists(COMMANDS, max_size=30), st.integers(0, 5))
def test_cached_dispatch_gives_the_same_plan(commands: list[c.Dispatch], stream: int) -> None:
    known = DispatchCache()
    for command in [*commands, *commands]:
        found, anew = reading(known, command), reading(DispatchCache(), command)
        if found is None or anew is None:
            assert found is None and anew is None
            continue
        assert found[0].record(command, stream) == anew[0].record(command, stream)
        assert found[0]._replace(first=anew[0].first) == anew[0]
        assert found[0].record(command, stream).stream == stream


def sound(*, size: int = 8, value: bytes = b"1234", **fields: int) -> c.Dispatch:
    bindings = [
        B(role=B.ROLE_VALUE, value=A(raw=value)),
        B(role=B.ROLE_INPUT, size=size, data=bytes(size)),
        B(role=B.ROLE_INPUT_OUTPUT, size=size, data=bytes(size)),
        B(role=B.ROLE_VALUE, value=A(pointer=A.Pointer(buffer=3, offset=8, read_only=True))),
    ]
    return c.Dispatch(function=1, grid=c.Dim3(x=1), block=c.Dim3(x=32), bindings=bindings, **fields)


def kept(known: DispatchCache, commands: Iterable[c.Dispatch]) -> list[CachedDispatch]:
    """Returns the cached entries of those commands that are in the cache."""
    found = (known.find(command, [binding.data for binding in command.bindings])[1] for command in commands)
    return [each for each in found if each is not None]


def seen(known: DispatchCache, commands: Iterable[c.Dispatch]) -> list[bool]:
    found = []
    for command in commands:
        read = reading(known, command)
        assert read is not None
        found.append(read[1])
    return found


def test_cache_ignores_contents_and_no_other_difference() -> None:
    known = DispatchCache()
    other = sound(value=b"5678")
    other.bindings[1].data = b"another "
    assert seen(known, [sound(), sound(), other]) == [False, True, True]
    assert seen(known, [sound(size=4), sound(value=b"12"), sound(timed=True), sound(iterations=1)]) == [False] * 4
    options = [sound(cooperative=True), sound(cooperative=True, fit=True), sound(mode=c.LAUNCH_MODE_UNCHECKED)]
    clusters = sound()
    clusters.cluster.x = 2
    assert seen(known, [*options, clusters, *options, clusters]) == [False] * 4 + [True] * 4
    read = reading(known, other)
    assert read is not None
    record, places = read[0].record(other, 5), unpack_layout(read[0].first.layout)
    assert record.params[places[0].offset :][:4] == b"5678" and record.stream == 5
    assert record.buffers == (0, 0, 3) and read[0].read_only == (True, False, True)
    assert int.from_bytes(record.params[places[3].offset :][:8], "little") == 8


def test_input_of_another_length_is_checked_again() -> None:
    known = DispatchCache()
    assert seen(known, [sound()]) == [False]
    short = sound()
    short.bindings[1].data = bytes(7)
    assert reading(known, short) is None


def test_dispatches_with_transfers_are_not_cached() -> None:
    known = DispatchCache()
    command = sound()
    command.bindings[1].data, command.bindings[1].upload = b"", 7
    assert seen(known, [command, command]) == [False, False]


def test_cache_is_bounded_and_keeps_no_long_commands_and_no_inputs() -> None:
    known = DispatchCache(max_dispatches=4)
    commands = [sound(timeout_ns=number) for number in range(1, 40)]
    for command in commands:
        assert seen(known, [command] * 2) == [False, True]
        assert 1 <= len(kept(known, commands)) <= 4
        assert all(not each.plan.arguments for each in kept(known, commands)), "they keep the whole command"
    long = sound(value=bytes(cache.MAX_COMMAND_BYTES))
    assert seen(known, [long, long]) == [False, False]
