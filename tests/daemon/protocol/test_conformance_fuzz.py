"""Every kind of command with arbitrary fields: each is answered, and other sessions are unaffected.

Commands are generated from their descriptors, so that commands added later are included. Valid commands that never end
(an endless launch, a transfer whose bytes never arrive) are not generated here.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hearth_proto import launches
from hearth_proto.launches import Extension, LayoutEntry, Record, pack, pack_layout
from hearth_proto.reasons import Reason, from_status
from hearth_proto.v1 import commands_pb2 as c
from tests.fuzz import messages as fuzzed
from tests.fuzz.furniture import BUILT, FURNITURE
from tests.fuzz.messages import NOTHING
from tests.fuzz.templates import ELSE, LARGE, SIDE, SMALL
from tests.support.daemon.harness import DaemonProcess
from tests.support.daemon.raw import Execute, Raw

pytestmark = pytest.mark.usefixtures("unharmed")

HANDLES = st.sampled_from(
    [SMALL, SMALL, SMALL, LARGE, LARGE, SIDE, SIDE, ELSE, 0, 5, 77, 4242, 2**32, 2**63, 2**64 - 1]
)
LIKELY = st.one_of(st.just(SMALL), st.just(SMALL), st.just(ELSE), HANDLES)
SIZES = st.sampled_from(fuzzed.SIZES)
OFFSETS = st.sampled_from(fuzzed.OFFSETS)
DIMS = st.sampled_from(fuzzed.DIMS)
FEW = st.sampled_from(fuzzed.FEW)
TEXTS = st.sampled_from(fuzzed.TEXTS)
BYTES = st.sampled_from(fuzzed.BYTES)

ONLY: dict[str, st.SearchStrategy[Any]] = {
    "transfer": st.just(0),  # the other half of a transfer would never arrive; see test_transfers
    "upload": st.just(0),
    "download": st.just(0),
    "iterations": FEW,
    "count": st.sampled_from([0, 1, 2, 3, 2**63]),
    "code": st.sampled_from([b"", NOTHING.encode()]),
    "options": st.just([]),
    "headers": st.just([]),
    "name_expressions": st.just([]),
    # single devices only: no other rank is waited for
    "devices": st.sampled_from([[], [0], [0], [1], [0, 0], [2**32 - 1]]),
    "root": st.sampled_from([0, 0, 0, 1, 2**32 - 1]),
    "peer": st.sampled_from([0, 0, 0, 1, 2**32 - 1]),
    "dtype": st.sampled_from(["float32", "uint8", "int8", "bfloat16", "float8_e4m3fn", "none", "", "\0", "x" * 300]),
    "max_events": FEW,
    "all_streams": st.booleans(),
}
BY_MESSAGE: dict[tuple[str, str], st.SearchStrategy[Any]] = {
    ("Launch", "timeout_ns"): st.sampled_from([0, 60 * 10**9]),  # a shorter timeout may rightly end the device process
    ("Dispatch", "timeout_ns"): st.sampled_from([0, 60 * 10**9]),
    ("AllReduce", "count"): SIZES,
    ("Collective", "sequence"): st.sampled_from([0, 1, 1, 2, 3, 2**64 - 1]),
    ("CollectiveOperation", "kind"): st.integers(0, 13),
    ("CollectiveOperation", "count"): st.one_of(st.integers(0, 4), SIZES),
    ("LaunchGraph", "count"): FEW,
    ("LaunchPrepared", "count"): FEW,
    ("Copy", "rows"): st.sampled_from([0, 1, 2, 2**40]),
    ("Rows", "rows"): st.sampled_from([0, 1, 2, 2**40]),
}
HANDLE_FIELDS = {
    "buffer", "buffers", "stream", "event", "module", "function", "profile", "graph", "prepared", "tensor_map",
    "source", "destination", "start", "end",
}  # fmt: skip


@st.composite
def records(draw: st.DrawFn) -> bytes:
    """Draws packed launches, most of which are well formed."""
    places = draw(
        st.sampled_from(
            [
                [LayoutEntry(0, 8, True), LayoutEntry(8, 4)],
                [LayoutEntry(0, 8, True, True), LayoutEntry(8, 4)],
                [LayoutEntry(0, 8), LayoutEntry(8, 4)],
                [LayoutEntry(0, 128, True), LayoutEntry(128, 4)],
                [LayoutEntry(0, 8, True)],
                [],
            ]
        )
    )
    size = max((place.offset + place.size for place in places), default=0)
    pointers = sum(place.pointer for place in places) + draw(st.sampled_from([0, 0, 0, 1]))
    extension = None
    if draw(st.booleans()):
        cluster = (draw(FEW), draw(FEW), draw(FEW))
        attributes = launches.Attributes(
            draw(st.booleans()), draw(st.sampled_from([None, -3, 2**31 - 1])), draw(st.sampled_from([0, 1, 7])),
            draw(st.sampled_from([None, launches.AccessWindow(LARGE, 0, 16), launches.AccessWindow(77, 8, 2**40)])),
        )  # fmt: skip
        attributes = draw(st.sampled_from([None, attributes]))
        extension = Extension(cluster, draw(FEW), draw(st.sampled_from([0, 0, LARGE, 77])), draw(OFFSETS), attributes)
    record = pack(
        Record(
            draw(LIKELY), draw(st.sampled_from([0, 0, 0, SIDE, ELSE, 77])),
            (draw(DIMS), draw(FEW), draw(FEW)), (draw(DIMS), draw(FEW), draw(FEW)),
            draw(st.sampled_from([0, 0, 1024, 2**31])), draw(st.integers(0, 31)),
            draw(st.sampled_from([0, 60 * 10**9])), pack_layout(places),
            tuple(draw(LIKELY) for _ in range(pointers)), draw(st.sampled_from([bytes(size), bytes(size + 8)])),
            extension,
        )
    )  # fmt: skip
    bad = bytearray(record)
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 2]))):
        at = draw(st.integers(0, len(bad) - 1))
        endless = (24, 36), (launches.HEADER.size - 8, launches.HEADER.size + launches.EXTENSION.size)
        if not any(start <= at < end for start, end in endless):  # grid, time limit, iterations
            bad[at] = draw(st.integers(0, 255))
    return bytes(bad)


def values(message: str, field: FieldDescriptor) -> st.SearchStrategy[Any]:
    """Returns a strategy for the possible values of a field."""
    chosen = BY_MESSAGE.get((message, field.name), ONLY.get(field.name))
    if chosen is not None:
        return chosen
    if field.message_type is not None:
        return messages(field.message_type)
    by_meaning = {
        field.name in ("launches", "launch"): records(),
        field.name in HANDLE_FIELDS: HANDLES,
        field.enum_type is not None: st.integers(0, 6),
        message == "Dim3": DIMS,
        "offset" in field.name: OFFSETS,
    }
    return by_meaning[True] if True in by_meaning else by_type(field)


def by_type(field: FieldDescriptor) -> st.SearchStrategy[Any]:
    kinds: dict[int, st.SearchStrategy[Any]] = {
        field.TYPE_STRING: TEXTS,
        field.TYPE_BYTES: BYTES,
        field.TYPE_BOOL: st.booleans(),
        field.TYPE_FLOAT: st.floats(width=32),
        field.TYPE_DOUBLE: st.floats(),
        field.TYPE_UINT32: st.sampled_from([0, 1, 4, 16, 256, 257, 2**31, 2**32 - 1]),
        field.TYPE_INT32: st.sampled_from([0, 1, -1, 5, 2**31 - 1, -(2**31)]),
        field.TYPE_SINT32: st.sampled_from([0, 1, -1, 2**31 - 1, -(2**31)]),
        field.TYPE_SINT64: st.sampled_from([0, 1, -1, 2**63 - 1, -(2**63)]),
        field.TYPE_UINT64: SIZES,
    }
    return kinds[field.type]


def messages(descriptor: Descriptor) -> st.SearchStrategy[dict[str, Any]]:
    """Draws the fields of a message by name; of a oneof only the field that was set last counts."""
    fields = {}
    for field in descriptor.fields:
        value = values(descriptor.name, field)
        fields[field.name] = value if not field.is_repeated or field.name in ONLY else st.lists(value, max_size=3)
    return st.fixed_dictionaries({}, optional=fields)


KINDS = {field.name: field for field in c.Command.DESCRIPTOR.oneofs_by_name["kind"].fields}


def commands() -> st.SearchStrategy[dict[str, Any]]:
    """Draws a command of any kind, as keyword arguments."""
    each = []
    for name, field in KINDS.items():
        value = records() if name == "launches" else messages(field.message_type)
        each.append(st.fixed_dictionaries({"stream": st.sampled_from([0, 0, 0, SIDE, ELSE, 77]), name: value}))
    return st.one_of(each)


def fill_in(message: Any, fields: dict[str, Any]) -> Any:
    """Sets the fields of the message; returns the message."""
    for name, value in fields.items():
        field = message.DESCRIPTOR.fields_by_name[name]
        if field.is_repeated:
            for each in value:
                if field.message_type is None:
                    getattr(message, name).append(each)
                else:
                    fill_in(getattr(message, name).add(), each)
        elif field.message_type is None:
            setattr(message, name, value)
        else:
            getattr(message, name).SetInParent()
            fill_in(getattr(message, name), value)
    return message


ANSWER_S = 10.0
"""Seconds within which every command here is answered; see the module's docstring."""


@pytest.fixture
def compiled(daemon: DaemonProcess) -> None:
    """Compiles the kernel, so that later sessions get it from the cache."""
    with Raw(daemon.unix) as session:
        session.function(NOTHING, "nothing")


def answers(stream: Execute, expected: set[int]) -> Iterator[c.Result]:
    """Yields the results with these request numbers, in the order in which they arrive."""
    overdue = threading.Timer(ANSWER_S, stream.cancel)
    overdue.start()
    try:
        while expected:
            try:
                response = stream.receive()
            except grpc.RpcError as error:
                raise AssertionError(f"no answer to {sorted(expected)} within {ANSWER_S:g} s") from error
            if response.WhichOneof("kind") == "result":
                expected.remove(response.result.request)
                yield response.result
            else:
                assert response.WhichOneof("kind") == "ack", response
    finally:
        overdue.cancel()


@settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(program=st.lists(st.tuples(commands(), st.booleans()), min_size=1, max_size=12))
@pytest.mark.usefixtures("compiled")
def test_any_command_is_answered(daemon: DaemonProcess, program: list[tuple[dict[str, Any], bool]]) -> None:
    """Each command is a request, or one-way and reported by the sync at the end; none causes an internal error of the
    daemon."""
    with Raw(daemon.unix) as session, session.execute() as stream:
        stream.batch(*FURNITURE)
        expected = {BUILT}
        batch = []
        for number, (fields, asked) in enumerate(program, 1):
            command = fill_in(c.Command(), fields)
            if asked:
                command.request = number
                expected.add(number)
            batch.append(command)
        # Every stream is synchronised, whatever the program did to it.
        batch += [c.Command(stream=on, request=1000 + on, sync=c.Sync()) for on in (0, SIDE, ELSE)]
        batch.append(c.Command(request=2000, sync=c.Sync(all_streams=True)))
        stream.batch(*batch)
        for result in answers(stream, expected | {1000, 1000 + SIDE, 1000 + ELSE, 2000}):
            assert "inside the daemon" not in str(result.error)
            if result.HasField("error"):
                assert from_status(result.error).reason not in (Reason.INTERNAL, Reason.DEVICE_LOST)
