"""Groups against a fake daemon: the commands that they send, and their refusals."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import hearth
from hearth_proto import reasons
from hearth_proto.collectives import short_number
from hearth_proto.v1 import commands_pb2 as c
from hearth_proto.v1 import node_pb2
from tests.support.client.group_daemon import GroupDaemon
from tests.support.client.internals import handle_of, memory_of, number_of


@pytest.fixture
def daemon() -> Iterator[GroupDaemon]:
    daemon = GroupDaemon(devices=3)
    yield daemon
    daemon.stop()


@pytest.fixture
def node(daemon: GroupDaemon) -> Iterator[hearth.Node]:
    with hearth.connect(daemon.target) as node:
        yield node


@pytest.fixture
def turned(node: hearth.Node) -> hearth.Group:
    """A group whose ranks 0, 1, 2 are devices 2, 0, 1."""
    return hearth.Group([node.device(ordinal) for ordinal in (2, 0, 1)])


def sent(daemon: GroupDaemon, node: hearth.Node) -> list[c.Collective]:
    for device in node.devices:
        device.synchronize()
    return [collective for _, collective in daemon.collectives]


def ones(group: hearth.Group, shape: Any = (6, 2), dtype: Any = np.float32) -> list[hearth.DeviceArray]:
    return [device.ones(shape, dtype) for device in group.devices]


# ---- messages that are sent ----


def test_all_reduce(daemon: GroupDaemon, node: hearth.Node) -> None:
    group = hearth.Group(node.devices[::-1])
    arrays, outs = ones(group), ones(group)
    assert group.all_reduce(arrays) == arrays
    assert hearth.Group(node.devices).all_reduce(arrays[::-1], op="mean", outs=outs[::-1], timeout=2) == outs[::-1]
    hearth.Group(node.devices[:1]).all_reduce(arrays[2:], op="max")
    group.synchronize()
    parts = sent(daemon, node)
    assert sorted((tuple(part.devices), part.sequence, part.operations[0].op) for part in parts) == [
        ((0,), 1, c.REDUCE_OP_MAX),
        *[((0, 1, 2), 1, c.REDUCE_OP_SUM)] * 3,
        *[((0, 1, 2), 2, c.REDUCE_OP_MEAN)] * 3,
    ]
    operations = [part.operations[0] for part in parts]
    assert {(each.kind, each.count, each.dtype) for each in operations} == {
        (c.COLLECTIVE_KIND_ALL_REDUCE, 12, "float32")
    }
    assert {part.timeout_ns for part in parts if part.sequence == 2} == {2_000_000_000}
    handles = {handle_of(out) for out in outs}
    assert {part.operations[0].destination for part in parts if part.sequence == 2} == handles
    assert daemon.count("sync_collective") == 3


ORDERLESS: list[tuple[str, Callable[[hearth.Group], Any], int]] = [
    ("all_reduce", lambda group: group.all_reduce(ones(group)), 12),
    ("reduce", lambda group: group.reduce(ones(group), root=0), 12),
    ("broadcast", lambda group: group.broadcast(ones(group), root=0), 12),
    ("broadcast", lambda group: group.broadcast(ones(group)[0], root=0), 12),
    ("barrier", lambda group: group.barrier(), 0),
]
ORDERED: list[tuple[str, Callable[[hearth.Group], Any], int]] = [
    ("all_gather", lambda group: group.all_gather(ones(group)), 12),
    ("reduce_scatter", lambda group: group.reduce_scatter(ones(group)), 4),
    ("all_to_all", lambda group: group.all_to_all(ones(group)), 4),
    ("gather", lambda group: group.gather(ones(group), root=0), 12),
    ("scatter", lambda group: group.scatter(ones(group)[0], root=0), 4),
]


@pytest.mark.parametrize(("kind", "call", "count"), ORDERLESS + ORDERED)
def test_ranks_by_number_where_the_order_does_not_matter(
    daemon: GroupDaemon, node: hearth.Node, turned: hearth.Group, kind: str, call: Any, count: int
) -> None:
    call(turned)
    parts = sent(daemon, node)
    ordered = (kind, call, count) in ORDERED
    assert [list(part.devices) for part in parts] == [[2, 0, 1] if ordered else [0, 1, 2]] * 3
    operations = [operation for part in parts for operation in part.operations]
    assert {(each.kind, each.count) for each in operations} == {(getattr(c, f"COLLECTIVE_KIND_{kind.upper()}"), count)}
    rooted = kind in ("reduce", "broadcast", "gather", "scatter")
    assert {each.root for each in operations} == {2 if rooted and not ordered else 0}
    at_root = {"broadcast": "source", "scatter": "source", "reduce": "destination", "gather": "destination"}
    if rooted:
        assert sorted(bool(getattr(each, at_root[kind])) for each in operations) == [False, False, True]


def test_results_have_their_shapes(turned: hearth.Group) -> None:
    group = turned
    for shape in [(3,), (6, 2), (0, 4), (3, 0)]:
        assert [out.shape for out in group.all_gather(ones(group, shape))] == [(3, *shape)] * 3
        assert [out.shape for out in group.reduce_scatter(ones(group, shape))] == [(shape[0] // 3, *shape[1:])] * 3
        assert [out.shape for out in group.all_to_all(ones(group, shape))] == [shape] * 3
        gathered = group.gather(ones(group, shape), root=1)
        assert gathered.shape == (3, *shape) and gathered.device is group.devices[1]
        scattered = group.scatter(ones(group, shape)[2], root=2)
        assert [out.shape for out in scattered] == [(shape[0] // 3, *shape[1:])] * 3
        back = group.scatter(gathered, root=1, outs=ones(group, shape))
        assert [out.shape for out in back] == [shape] * 3
        reduced = group.reduce(ones(group, shape), root=2)
        assert reduced.shape == shape and reduced.device is group.devices[2]
        x = ones(group, shape)[1]
        outs = group.broadcast(x, root=1)
        assert outs[1] is x and [out.shape for out in outs] == [shape] * 3
        assert [out.device for out in outs] == group.devices
    scalars = ones(group, ())
    assert group.all_reduce(scalars) == scalars
    assert [out.shape for out in group.all_gather(scalars)] == [(3,)] * 3


def test_empty_operations_are_not_sent(daemon: GroupDaemon, node: hearth.Node, turned: hearth.Group) -> None:
    group = turned
    arrays = ones(group, (0, 3))
    group.all_reduce(arrays)
    group.reduce(arrays)
    group.broadcast(arrays)
    group.all_gather(arrays)
    group.all_to_all(arrays)
    with group.batch():
        group.all_reduce(arrays)
    assert sent(daemon, node) == []


def test_any_dtype_is_moved(daemon: GroupDaemon, node: hearth.Node, turned: hearth.Group) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    expected = []
    for dtype, name, each in (
        (np.bool_, "bool", 1), (np.complex128, "complex128", 1), (ml_dtypes.bfloat16, "bfloat16", 1),
        (ml_dtypes.float8_e4m3fn, "float8_e4m3fn", 1), ("S3", "uint8", 3), ("M8[s]", "uint8", 8),
        ([("a", "<i4"), ("b", "u1")], "uint8", 5), (ml_dtypes.int4, "uint8", 1),
    ):  # fmt: skip
        turned.all_gather([device.empty(4, dtype) for device in turned.devices])
        expected += [(name, 4 * each)] * 3
    moved = [(part.operations[0].dtype, part.operations[0].count) for part in sent(daemon, node)]
    assert sorted(moved) == sorted(expected)


def test_streams_are_each_devices_current_one(daemon: GroupDaemon, node: hearth.Node) -> None:
    group = hearth.Group(node.devices[:2])
    arrays = ones(group)
    with node.device(1).stream() as stream:
        group.all_reduce(arrays)
        group.synchronize()
    node.device(0).synchronize()
    node.device(1).synchronize()
    assert sorted(handle for handle, _ in daemon.collectives) == [0, number_of(stream)]
    syncs = [command.stream for command in daemon.commands if command.WhichOneof("kind") == "sync_collective"]
    assert sorted(syncs) == [0, number_of(stream)]


# ---- sends, receives ----


def test_each_side_of_a_pair_is_sent_alone_and_counts(
    daemon: GroupDaemon, node: hearth.Node, turned: hearth.Group
) -> None:
    arrays = ones(turned)
    for _ in range(2):
        turned.send(arrays[0], to=2)  # device 2 to device 1
    assert turned.recv(arrays[2], source=0, timeout=3) is arrays[2]
    turned.recv(arrays[0], source=1)  # device 2 from device 0
    first, second, received, other = sorted(
        sent(daemon, node), key=lambda part: (tuple(part.devices) != (1, 2), part.operations[0].kind, part.sequence)
    )
    assert [list(part.devices) for part in (first, second)] == [[1, 2]] * 2
    assert [short_number(part.sequence) for part in (first, second, received, other)] == [1, 2, 1, 1]
    assert first.sequence == received.sequence
    assert first.operations[0].kind == c.COLLECTIVE_KIND_SEND and first.operations[0].peer == 0
    assert first.operations[0].source == handle_of(arrays[0]) and not first.operations[0].destination
    assert (list(received.devices), received.timeout_ns) == ([1, 2], 3_000_000_000)
    assert received.operations[0].kind == c.COLLECTIVE_KIND_RECV and received.operations[0].peer == 1
    assert (list(other.devices), other.operations[0].peer) == ([0, 2], 0)


def test_empty_messages_are_sent_as_empty_parts(daemon: GroupDaemon, node: hearth.Node, turned: hearth.Group) -> None:
    """A send of an empty array is submitted, so that the receiver, which cannot know that it is empty, gets an
    error."""
    turned.send(turned.devices[0].zeros(0), to=1)
    (part,) = sent(daemon, node)
    assert part.operations[0].count == 0


def test_copies_between_devices_are_a_send_and_a_receive(daemon: GroupDaemon, node: hearth.Node) -> None:
    first, second = node.devices[:2]
    x, y = first.ones((4, 6), np.int32), second.zeros((4, 6), np.int32)
    side = second.stream()
    y.copy_from(x, stream=side)
    z = second.asarray(x)
    assert z.device is second and z.shape == x.shape and z.dtype == x.dtype
    assert second.asarray(z) is z
    copies = second.array(x)
    assert copies.device is second
    turned_back = x.copy_from(y)
    assert turned_back is None
    parts = sent(daemon, node)
    assert {tuple(part.devices) for part in parts} == {(0, 1)}
    assert sorted(part.sequence for part in parts) == [1, 1, 2, 2, 3, 3, 4, 4]
    kinds = [(part.sequence, part.operations[0].kind, part.operations[0].peer) for part in parts]
    assert (1, c.COLLECTIVE_KIND_SEND, 1) in kinds and (1, c.COLLECTIVE_KIND_RECV, 0) in kinds
    assert (4, c.COLLECTIVE_KIND_SEND, 0) in kinds and (4, c.COLLECTIVE_KIND_RECV, 1) in kinds
    assert {handle for handle, part in daemon.collectives if part.sequence == 1} == {0, number_of(side)}


def test_copies_of_strided_views_between_devices(daemon: GroupDaemon, node: hearth.Node) -> None:
    first, second = node.devices[:2]
    x, y = first.ones((4, 6), np.int32), second.zeros((4, 6), np.int32)
    y[:, 1:3].copy_from(x[:, 2:4])
    parts = sent(daemon, node)
    assert {part.operations[0].count for part in parts} == {8}
    used = {handle_of(x), handle_of(y)}
    assert not used & {part.operations[0].source for part in parts}
    assert daemon.count("copy") == 2
    with pytest.raises(hearth.ArgumentError, match="copied"):
        y.copy_from(x[:2])
    with hearth.connect(daemon.target) as other, pytest.raises(hearth.UnsupportedError, match="different sessions"):
        y.copy_from(other.device(0).ones((4, 6), np.int32))


# ---- batches ----


def test_a_batch_is_one_operation_of_every_rank(daemon: GroupDaemon, node: hearth.Node, turned: hearth.Group) -> None:
    arrays, outs = ones(turned), ones(turned)
    with turned.batch(timeout=1.5) as batch:
        for rank in range(3):
            turned.send(arrays[rank], to=(rank + 1) % 3)
            turned.recv(outs[rank], source=(rank - 1) % 3)
        turned.broadcast([device.zeros(3) for device in turned.devices], root=1)
        assert len(batch) == 9
        assert daemon.collectives == []
    parts = sent(daemon, node)
    assert [(list(part.devices), part.sequence, part.timeout_ns) for part in parts] == [
        ([2, 0, 1], 1, 1_500_000_000)
    ] * 3
    for part in parts:
        kinds = [operation.kind for operation in part.operations]
        assert kinds == [c.COLLECTIVE_KIND_SEND, c.COLLECTIVE_KIND_RECV, c.COLLECTIVE_KIND_BROADCAST]
        assert part.operations[2].root == 1
        assert sorted(operation.peer for operation in part.operations[:2]) in ([1, 2], [0, 2], [0, 1])


def test_rank_without_a_part_presents_an_empty_batch(
    daemon: GroupDaemon, node: hearth.Node, turned: hearth.Group
) -> None:
    arrays = ones(turned)
    with turned.batch():
        turned.send(arrays[0], to=1)
        turned.recv(arrays[1], source=0)
    assert sorted(len(part.operations) for part in sent(daemon, node)) == [0, 1, 1]
    with turned.batch():
        pass
    assert len(sent(daemon, node)) == 3


def test_a_batch_that_fails_presents_nothing(daemon: GroupDaemon, node: hearth.Node, turned: hearth.Group) -> None:
    arrays = ones(turned)

    def refused(words: str, block: Callable[[], Any]) -> None:
        with pytest.raises(hearth.ArgumentError, match=words), turned.batch():
            block()

    with pytest.raises(KeyError), turned.batch():
        turned.all_reduce(arrays)
        raise KeyError
    refused("1 sends from rank 0 to rank 1, but 0 matching", lambda: turned.send(arrays[0], to=1))
    refused("0 sends from rank 2 to rank 1, but 1 matching", lambda: turned.recv(arrays[1], source=2))
    refused(
        "to rank 1 in the batch has 12 elements of float32, but the matching receive has 6",
        lambda: (turned.send(arrays[0], to=1), turned.recv(arrays[1][:3], source=0)),
    )
    refused("same memory", lambda: (turned.all_reduce(arrays), turned.all_reduce(arrays)))
    refused("timeout is 3 s for an operation inside a batch", lambda: turned.all_reduce(arrays, timeout=3))
    refused("already open here", turned.batch)

    def other_stream() -> None:
        turned.all_reduce(arrays)
        with node.device(0).stream():
            turned.all_reduce(ones(turned))

    refused("rank 1 uses", other_stream)
    freed = ones(turned)

    def free() -> None:
        turned.all_reduce(freed)
        freed[2].free()

    with pytest.raises(hearth.InvalidHandleError, match="freed"), turned.batch():
        free()
    assert sent(daemon, node) == []
    turned.all_reduce(arrays)
    assert {part.sequence for part in sent(daemon, node)} == {1}


def test_batch_belongs_to_its_group_and_thread(daemon: GroupDaemon, node: hearth.Node, turned: hearth.Group) -> None:
    pair = hearth.Group(node.devices[:2])
    with turned.batch():
        turned.all_reduce(ones(turned))
        pair.all_reduce(ones(pair))
        thread = threading.Thread(target=lambda: turned.all_reduce(ones(turned)))
        thread.start()
        thread.join()
        assert {tuple(part.devices) for part in sent(daemon, node)} == {(0, 1), (0, 1, 2)}
        with pair.batch():
            pair.all_reduce(ones(pair))
            turned.barrier()
    parts = sent(daemon, node)[5:]
    assert sorted(tuple(part.devices) for part in parts) == [(0, 1), (0, 1), (2, 0, 1), (2, 0, 1), (2, 0, 1)]
    assert [len(part.operations) for part in parts if len(part.devices) == 3] == [2] * 3


def test_batches_run_on_the_streams_of_their_calls(daemon: GroupDaemon, node: hearth.Node) -> None:
    group = hearth.Group(node.devices[:2])
    with group.batch(), node.device(1).stream() as stream:
        group.all_reduce(ones(group))
    node.device(0).synchronize()
    node.device(1).synchronize()
    assert sorted(handle for handle, _ in daemon.collectives) == [0, number_of(stream)]


# ---- calls that the client refuses ----


def test_mismatched_arguments_are_refused(daemon: GroupDaemon, node: hearth.Node) -> None:
    group = hearth.Group(node.devices[:2])
    x, y = ones(group, (4, 2))
    elsewhere = node.device(2).ones((4, 2), np.float32)
    text = [device.empty(3, "S4") for device in group.devices]
    attached = node.device(1).ones((4, 2), np.float32)
    memory_of(attached).read_only = True
    with hearth.connect(daemon.target) as other:
        theirs = other.device(0).ones((4, 2), np.float32)
        cases: list[tuple[str, Callable[[], Any]]] = [
            ("1 entries", lambda: group.all_reduce([x])),
            ("arrays is a DeviceArray", lambda: group.all_reduce(x)),  # type: ignore[arg-type]
            ("arrays is a NoneType", lambda: group.all_reduce(None)),  # type: ignore[arg-type]
            ("rank 0 of the group is device 0", lambda: group.all_reduce([y, x])),
            ("of another session", lambda: group.all_reduce([theirs, y])),
            (r"\(3, 2\)", lambda: group.all_reduce([x, y[1:]])),
            ("int32", lambda: group.all_reduce([x, y.view(np.int32)])),
            ("ndarray", lambda: group.all_reduce([x, np.zeros((4, 2))])),  # type: ignore[list-item]
            ("strides", lambda: group.all_gather([x[:, :1], y[:, :1]])),
            ("op is 'xor'", lambda: group.all_reduce([x, y], op="xor")),
            (r"op is \['sum'\]", lambda: group.reduce([x, y], op=["sum"])),  # type: ignore[arg-type]
            ("complex64", lambda: group.all_reduce([x.view(np.complex64), y.view(np.complex64)], op="max")),
            ("premul_sum", lambda: group.all_reduce([x, y], op="premul_sum")),
            ("bool", lambda: group.reduce([x.view(np.bool_), y.view(np.bool_)])),
            (r"\|S4", lambda: group.reduce_scatter([text[0][:2], text[1][:2]])),
            ("root is 2", lambda: group.reduce([x, y], root=2)),
            ("root is -1", lambda: group.broadcast([x, y], root=-1)),
            ("root is True", lambda: group.gather([x, y], root=True)),
            ("root is '0'", lambda: group.scatter(x, root="0")),  # type: ignore[arg-type]
            ("rank 1 of the group is device 1", lambda: group.broadcast(x, root=1)),
            ("out is .*rank 1 of the group", lambda: group.reduce([x, y], root=1, out=x)),
            (
                r"outs\[0\] is float32 \(4, 2\); it must be float32 \(2, 4, 2\)",
                lambda: group.all_gather([x, y], [x, y]),
            ),
            ("first dimension", lambda: group.reduce_scatter([x[:3], y[:3]])),
            ("first dimension", lambda: group.all_to_all([x.reshape(8)[0:1].reshape(()), y[0, 0]])),
            ("first dimension", lambda: group.scatter(x[:3])),
            ("overlap", lambda: group.all_to_all([x, y], outs=[x, y])),
            ("overlap", lambda: group.all_reduce([x[:3], y[:3]], outs=[x[1:], y[1:]])),
            ("overlap", lambda: group.reduce_scatter([x, y], outs=[x[:2], y[:2]])),
            ("read-only", lambda: group.all_reduce([x, attached])),
            ("read-only", lambda: group.all_reduce([x, y], outs=[x, attached])),
            ("read-only", lambda: group.broadcast([x, hearth.read_only(y)])),  # type: ignore[list-item]
            ("timeout is 0", lambda: group.all_reduce([x, y], timeout=0)),
            ("timeout is nan", lambda: group.barrier(timeout=float("nan"))),
            ("timeout is 1e", lambda: group.batch(timeout=1e30)),
            ("on no device", lambda: group.send(elsewhere, to=0)),
            ("to is 2", lambda: group.send(x, to=2)),
            ("source is 7", lambda: group.recv(x, source=7)),
            ("itself", lambda: group.send(x, to=0)),
            ("read-only", lambda: group.recv(attached, source=0)),
            ("rank is 2", lambda: group.subgroup([0, 2])),
            ("twice", lambda: group.subgroup([0, 0])),
            ("at least one device", lambda: group.subgroup([])),
            ("ranks is 1", lambda: group.subgroup(1)),  # type: ignore[arg-type]
            ("rank is 'a'", lambda: group.subgroup("a")),  # type: ignore[arg-type]
            ("are excluded", lambda: group.rebuild(without=[0, 1])),
            ("without is 5", lambda: group.rebuild(without=5)),
            ("without is None", lambda: group.rebuild(without=None)),  # type: ignore[arg-type]
            ("without is 0.5", lambda: group.rebuild(without=0.5)),  # type: ignore[arg-type]
            ("not a device of the group", lambda: group.rebuild(without=node.device(2))),
            ("not a device of the group", lambda: group.rebuild(without=[other])),
            ("twice", lambda: hearth.Group([node.device(0), node.device(0)])),
            ("at least one device", lambda: hearth.Group([])),
            ("not a device", lambda: hearth.Group([0, 1])),  # type: ignore[list-item]
            ("list of devices", lambda: hearth.Group(node)),  # type: ignore[arg-type]
            ("list of devices", lambda: hearth.Group(node.gpu)),  # type: ignore[arg-type]
            ("list of devices", lambda: hearth.Group(None)),  # type: ignore[arg-type]
            ("timeout", lambda: hearth.Group([node.device(0)], timeout=-1)),
        ]
        for words, call in cases:
            with pytest.raises((hearth.ArgumentError, hearth.DtypeError), match=words) as caught:
                call()
            assert caught.value.fix, words
    assert sent(daemon, node) == []
    assert not group.closed


def test_complex_numbers_are_sent_as_their_parts(daemon: GroupDaemon, node: hearth.Node, turned: hearth.Group) -> None:
    turned.all_reduce(ones(turned, 5, np.complex128), op="mean")
    for part in sent(daemon, node):
        (operation,) = part.operations
        assert (operation.dtype, operation.count, operation.op) == ("float64", 10, c.REDUCE_OP_MEAN)


def test_daemon_without_premultiplied_sums(daemon: GroupDaemon, node: hearth.Node, turned: hearth.Group) -> None:
    with pytest.raises(hearth.UnsupportedError, match=r"hearth.premul_sum\(2\)") as caught:
        turned.all_reduce(ones(turned), op=hearth.premul_sum(2))
    assert "update the daemon" in caught.value.fix
    assert sent(daemon, node) == []


def test_in_place_operations_as_in_nccl(daemon: GroupDaemon, node: hearth.Node, turned: hearth.Group) -> None:
    group = turned
    outs = ones(group, (3, 4))
    group.all_gather([out[rank] for rank, out in enumerate(outs)], outs)
    group.gather([out[rank] for rank, out in enumerate(outs)], root=1, out=outs[1])
    group.reduce_scatter(outs, outs=[out[rank : rank + 1] for rank, out in enumerate(outs)])
    group.scatter(outs[2], root=2, outs=[out[rank] for rank, out in enumerate(outs)])
    group.reduce(outs, root=0, out=outs[0])
    group.broadcast(outs)
    group.all_reduce([hearth.read_only(out) for out in outs], outs=ones(group, (3, 4)))  # type: ignore[misc]
    assert len(sent(daemon, node)) == 21


def test_freed_arrays_and_closed_groups(daemon: GroupDaemon, node: hearth.Node) -> None:
    group = hearth.Group(node.devices[:2])
    x, y = ones(group)
    y.free()
    with pytest.raises(hearth.InvalidHandleError, match="freed"):
        group.all_reduce([x, y])
    with group as entered:
        assert entered is group and not group.closed
    group.close()
    assert group.closed and "closed" in repr(group)
    for call in (
        lambda: group.all_reduce(ones(group)), lambda: group.send(x, 1), group.barrier, group.synchronize, group.batch,
        lambda: group.subgroup([0]),
    ):  # fmt: skip
        with pytest.raises(hearth.ClosedError, match="is closed"):
            call()
    assert hearth.Group(node.devices[:2]).all_reduce(ones(group))
    assert len(sent(daemon, node)) == 2


def test_not_inside_a_recording(daemon: GroupDaemon, node: hearth.Node) -> None:
    group = hearth.Group(node.devices[:2])
    arrays = ones(group)
    y = node.device(1).zeros((6, 2), np.float32)
    with node.device(0).graph():
        for call in (lambda: group.all_reduce(arrays), group.barrier, lambda: y.copy_from(arrays[0])):
            with pytest.raises(hearth.LaunchError, match="recorded") as caught:
                call()
            assert caught.value.reason == "CAPTURE_INVALID"
    assert sent(daemon, node) == []


# ---- groups of groups ----


def test_subgroups_and_rebuilt_groups(daemon: GroupDaemon, node: hearth.Node, turned: hearth.Group) -> None:
    assert len(turned) == 3 and turned.id == "" and "[2, 0, 1]" in repr(turned)
    small = turned.subgroup([2, 0])
    assert [device.ordinal for device in small.devices] == [1, 2]
    assert not turned.closed
    again = turned.rebuild()
    assert [device.ordinal for device in again.devices] == [2, 0, 1]
    assert turned.closed and not again.closed
    assert [device.ordinal for device in again.rebuild(without=[0]).devices] == [0, 1]
    assert [device.ordinal for device in turned.rebuild(without=node.device(0)).devices] == [2, 1]
    assert [device.ordinal for device in turned.rebuild(without=(1, node.device(2))).devices] == [1]
    assert daemon.asked == []


def test_the_flight_recorder(daemon: GroupDaemon, node: hearth.Node, turned: hearth.Group) -> None:
    def info(*devices: int, group: bytes = b"", operations: Any = ()) -> node_pb2.GroupInfo:
        members = [node_pb2.GroupMember(device=device) for device in devices]
        return node_pb2.GroupInfo(group=group, members=members, operations=operations)

    operation = node_pb2.GroupOperation
    daemon.described = [
        info(0, 1, 2, operations=[
            operation(sequence=1, what="all_reduce 4 float32 sum", state="done", presented=[0, 1, 2],
                      presented_unix_ns=10, launched_unix_ns=11, finished_unix_ns=12),
            operation(sequence=2, what="barrier", state="presented", presented=[0, 2], presented_unix_ns=40),
        ]),
        info(2, 0, 1, operations=[operation(sequence=1, what="all_gather 4 int8", state="failed", presented=[1],
                                            presented_unix_ns=20, error="late")]),
        info(0, 2, operations=[operation(sequence=3, what="send 4 int8 to 1", state="launched", presented=[0, 1],
                                         presented_unix_ns=30)]),
        info(1, 2, 0, operations=[operation(sequence=9, what="of another order")]),
        info(0, 1, 5, operations=[operation(sequence=9, what="of another device")]),
        info(0, 1, 2, group=b"g", operations=[operation(sequence=9, what="over daemons")]),
    ]  # fmt: skip
    first, second, third, last = turned.flight_recorder()
    assert first == hearth.FlightRecord("all_reduce 4 float32 sum", "done", 1, (1, 2, 0), (1, 2, 0), 10, 11, 12)
    assert (second.ranks, second.presented, second.missing, second.error) == ((0, 1, 2), (1,), (0, 2), "late")
    assert (third.ranks, third.sequence, third.state) == ((1, 0), 3, "launched")
    assert (last.ranks, last.presented, last.missing) == ((1, 2, 0), (1, 0), (2,))
    assert str(last) == "#2 barrier presented, missing rank 2"
    assert str(second) == "#1 all_gather 4 int8 failed, missing rank 0, 2: late"


# ---- errors ----


@pytest.mark.parametrize("reason", ["COLLECTIVE_MISMATCH", "COLLECTIVE_TIMEOUT", "COMMUNICATOR_FAILED"])
def test_errors_show_the_recorder(daemon: GroupDaemon, node: hearth.Node, reason: str) -> None:
    details = {"recorder": "7 barrier: done\n8 all_reduce 4 float32 sum: failed", "missing": "1, 3"}
    refusal = reasons.Refusal(reasons.Reason(reason), "It did not work.", fix="Mend it.", details=details)
    daemon.fail_next["collective"] = refusal
    group = hearth.Group(node.devices[:1])
    group.all_reduce(ones(group))
    with pytest.raises(hearth.CommunicatorError) as caught:
        node.device(0).synchronize()
    error = caught.value
    assert error.reason == reason and error.missing == [1, 3]
    assert error.recorder == ["7 barrier: done", "8 all_reduce 4 float32 sum: failed"]
    head, title, *lines = str(error).splitlines()
    assert head.endswith("It did not work. Fix: Mend it.") and title == "  The group's last operations:"
    assert lines == ["    7 barrier: done", "    8 all_reduce 4 float32 sum: failed"]
    assert str(hearth.CommunicatorError("Short.", fix="f")) == "Short. Fix: f"
    assert hearth.CommunicatorError("Short.").missing == []


# ---- threads ----


def test_threads_share_the_count_of_a_group(daemon: GroupDaemon, node: hearth.Node) -> None:
    arrays = [device.zeros(3) for device in node.devices]

    def reduce() -> None:
        group = hearth.Group(node.devices)
        for _ in range(20):
            group.all_reduce(arrays)

    threads = [threading.Thread(target=reduce) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sequences = [part.sequence for part in sent(daemon, node)]
    assert sorted(sequences) == sorted([*range(1, 81)] * 3)
