"""Arbitrary messages: valid ones with random fields, and damaged ones.

Messages are generated from the descriptors, so that messages and fields added later are included. Valid commands that
never end (an endless launch, a launch whose short limit ends the device process) are not generated.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from hearth_proto import launches
from hearth_proto.launches import Extension, LayoutEntry, Record
from hearth_proto.v1 import commands_pb2
from tests.fuzz.templates import CLOSED, TEMPLATES

HANDLES = (0, 1, 1, 1, 2, 2, 3, 4, 5, 77, 4242, 2**32, 2**40 + 1, 2**63, 2**64 - 1)
SIZES = (0, 1, 3, 4, 8, 16, 17, 512, 4096, 4097, 1 << 20, 1 << 41, 2**63 - 1, 2**63, 2**64 - 1)
OFFSETS = (0, 0, 0, 1, 4, 8, 15, 16, 4096, 1 << 31, 2**63, 2**64 - 1)
DIMS = (0, 1, 1, 1, 2, 3, 64, 1025, 65536, 2**32 - 1)
FEW = (0, 1, 1, 2, 3)
TEXTS = (
    "",
    "nothing",
    "variable",
    "float32",
    "none",
    "128b",
    "int8",
    "\0",
    "x" * 300,
    "f<int>",
    "é",
    "*",
    "../..",
    "%s",
)
BYTES = (b"", b"x", bytes(4), bytes(16), b"\xff" * 64, bytes(5000))
LIMITS_NS = (0, 60 * 10**9)
"""Time limits of a launch in nanoseconds: a shorter limit may rightly end the device process."""

SOON_NS = (0, 1, 10**9)
"""Time limits in nanoseconds of a group whose other daemons never join."""

NOTHING = 'extern "C" __global__ void nothing(int* x, int n) {}\n__device__ int variable[4];'
"""A kernel that accepts any arguments."""

OPTIONS = ("", "-DN=1", "f<int>", "-x", "--help", "-I/etc")
NUMBERED = frozenset({
    "buffer", "buffers", "stream", "event", "module", "function", "profile", "graph", "prepared", "tensor_map",
    "source", "destination", "start", "end", "transfer",
})  # fmt: skip
RUNS = frozenset({"function", "graph", "prepared"})
NO_HANDLE = 0x7777_7777_7777
"""A handle that does not exist, far from all others."""
ORDINALS = (0, 0, 0, 0, 1, 2, 77, 2**32 - 1)
BY_NAME: Mapping[str, tuple[Any, ...]] = {
    "device": ORDINALS,
    "devices": ORDINALS,
    # No server listens there, so that nothing is waited for, and no external host is contacted.
    "addresses": (CLOSED, CLOSED, "unix:/nowhere/peer.sock", "unix:", "127.0.0.1", "127.0.0.1:99999", ":1", ""),
    # sequence numbers of collectives: a number that was used before is refused
    "sequence": (0, 2**64 - 1, *range(1, 3000)),
    **dict.fromkeys(("root", "peer"), (0, 0, 0, 1, 2, 77, 2**32 - 1)),
    "code": (b"", NOTHING.encode(), NOTHING.encode(), b"int x", b"\x7fELF", bytes(100)),
    "options": OPTIONS,
    "headers": OPTIONS,
    "name_expressions": OPTIONS,
    **dict.fromkeys(("transfer", "upload", "download"), (*(0,) * 9, 1, 2, 2**64 - 1)),
    **dict.fromkeys(("iterations", "max_events", "rows", "batches"), FEW),
}


def _runs(message: Message) -> bool:
    """Returns whether the message launches kernels, or creates an object with which another message could."""
    return any(field.name in RUNS or field.name in ("launch", "launches") for field, _ in message.ListFields())


class Maker:
    """Generates messages. `names` and `tokens` are words by which other sessions might be reached."""

    def __init__(self, rng: random.Random, tokens: Callable[[], str], names: tuple[str, ...] = ()) -> None:
        self.rng = rng
        self.token = tokens
        self._texts = (*TEXTS, *names)
        self._harmless = False

    @contextlib.contextmanager
    def harmless(self) -> Iterator[None]:
        """Restricts the generator to messages that launch nothing, even if one of their bits is flipped, because a grid
        or a time limit could then have any value."""
        before, self._harmless = self._harmless, True
        try:
            yield
        finally:
            self._harmless = before

    def command(self) -> Any:
        """Returns a command of any kind, with or without an answer."""
        command = commands_pb2.Command()
        field = self.rng.choice(command.DESCRIPTOR.oneofs_by_name["kind"].fields)
        self._set(command, field, 1)
        command.stream = self.rng.choice((0, 0, 0, 3, 4, 77))
        command.request = self.rng.choice((0, 0, 0, 1, 2, 9, 2**64 - 1))
        return command

    # ---- valid messages ----

    def fill(self, message: Message, likely: float = 0.6, depth: int = 0) -> Any:
        """Sets fields at random; of a oneof, the field that is set last counts."""
        template = TEMPLATES.get(message.DESCRIPTOR.name)
        if template is not None and self.rng.random() < 0.6 and not (self._harmless and _runs(template)):
            message.CopyFrom(template)
            likely = 0.1
        for field in message.DESCRIPTOR.fields:
            needed = field.name in ("target", "command", "session_token", "sequence")
            if self.rng.random() < (0.97 if needed else likely / (1 + depth / 3)):
                self._set(message, field, depth)
        return message

    def _set(self, message: Message, field: Any, depth: int) -> None:
        times = self.rng.choice((0, 1, 1, 2, 3)) if field.is_repeated else 1
        for _ in range(times):
            if field.message_type is not None and field.message_type.GetOptions().map_entry:
                getattr(message, field.name)[self.rng.choice(self._texts)] = "text"
            elif field.message_type is not None:
                if depth > 5:
                    return
                if field.is_repeated:
                    inner = getattr(message, field.name).add()
                else:
                    inner = getattr(message, field.name)
                    inner.SetInParent()
                self.fill(inner, depth=depth + 1)
            elif field.is_repeated:
                getattr(message, field.name).append(self.value(message.DESCRIPTOR.name, field))
            else:
                setattr(message, field.name, self.value(message.DESCRIPTOR.name, field))

    def value(self, message: str, field: FieldDescriptor) -> Any:
        """Returns a possible value of a field."""
        if field.name == "session_token":
            return self.token()
        if field.name in ("launches", "launch") and field.type == field.TYPE_BYTES:
            return self.records()
        return self.rng.choice(self._choices(message, field))

    def _choices(self, message: str, field: FieldDescriptor) -> tuple[Any, ...]:
        name = field.name
        by_meaning: tuple[tuple[bool, tuple[Any, ...]], ...] = (
            (name in BY_NAME, BY_NAME.get(name, ())),
            (name == "timeout_ns" and "Group" in message, SOON_NS),
            (name.endswith("timeout_ns"), LIMITS_NS),
            (name == "count" and message in ("LaunchGraph", "LaunchPrepared"), FEW),
            (name in RUNS and self._harmless, (NO_HANDLE,)),
            (name in NUMBERED, HANDLES),
            (name == "node" and "Group" in message, FEW),
            (name == "kind" and message == "CollectiveOperation", tuple(range(13))),
            (field.enum_type is not None, (0, 1, 1, 2, 3, 4, 5, 6, 99)),
            (message == "Dim3", DIMS),
            ("offset" in name, OFFSETS),
        )
        return next((values for meant, values in by_meaning if meant), None) or self._by_type(field)

    def _by_type(self, field: FieldDescriptor) -> tuple[Any, ...]:
        values: Mapping[int, tuple[Any, ...]] = {
            field.TYPE_STRING: self._texts,
            field.TYPE_BYTES: BYTES,
            field.TYPE_BOOL: (False, True),
            field.TYPE_FLOAT: (0.0, 1.5, -1e30, float("nan"), float("inf")),
            field.TYPE_DOUBLE: (0.0, 1.5, -1e300, float("nan"), float("inf")),
            field.TYPE_UINT32: (0, 1, 4, 16, 256, 257, 2**31, 2**32 - 1),
            field.TYPE_INT32: (0, 1, -1, 5, 2**31 - 1, -(2**31)),
            field.TYPE_SINT32: (0, 1, -1, 2**31 - 1, -(2**31)),
            field.TYPE_INT64: (0, 1, -1, 2**63 - 1, -(2**63)),
            field.TYPE_SINT64: (0, 1, -1, 2**63 - 1, -(2**63)),
            field.TYPE_UINT64: SIZES,
        }
        return values[field.type]

    def records(self) -> bytes:
        """Returns packed launches, most of which are well formed."""
        pick = self.rng.choice
        places = pick((
            [LayoutEntry(0, 8, True), LayoutEntry(8, 4)], [LayoutEntry(0, 8, True, True), LayoutEntry(8, 4)],
            [LayoutEntry(0, 8), LayoutEntry(8, 4)],
            [LayoutEntry(0, 128, True), LayoutEntry(128, 4)], [LayoutEntry(0, 8, True)], [],
        ))  # fmt: skip
        size = max((place.offset + place.size for place in places), default=0)
        pointers = sum(place.pointer for place in places) + pick((0, 0, 0, 1))
        extension = None
        if pick((False, False, True)):
            cluster = (pick(FEW), pick(FEW), pick(FEW))
            window = launches.AccessWindow(pick((1, 1, 77)), pick(OFFSETS), pick((0, 16, 2**40)), 0.5, pick(FEW), 1)
            attributes = launches.Attributes(
                pick((False, True)), pick((None, -3, 2**31 - 1)), pick((0, 1, 7)), pick((None, window))
            )
            extension = Extension(cluster, pick(FEW), pick((0, 0, 2, 77)), pick(OFFSETS), pick((None, attributes)))
        record = launches.pack(
            Record(
                NO_HANDLE if self._harmless else pick((1, 1, 1, 77)), pick((0, 0, 3, 77)),
                (pick(DIMS[:-1]), pick(FEW), pick(FEW)),
                (pick(DIMS), pick(FEW), pick(FEW)), pick((0, 0, 1024, 2**31)), pick(range(32)), pick(LIMITS_NS),
                launches.pack_layout(places), tuple(pick(HANDLES) for _ in range(pointers)),
                pick((bytes(size), bytes(size + 8))), extension,
            )
        )  # fmt: skip
        bad = bytearray(record)
        endless = (24, 36), (launches.HEADER.size - 8, launches.HEADER.size + launches.EXTENSION.size)
        for _ in range(pick((0, 0, 0, 1, 2))):
            at = self.rng.randrange(len(bad))
            if not any(start <= at < end for start, end in endless):  # grid, time limit, iterations
                bad[at] = self.rng.randrange(256)
        return bytes(bad[: self.rng.randrange(len(bad))]) if self.rng.random() < 0.1 else bytes(bad)

    # ---- damaged messages ----

    def junk(self, most: int = 300) -> bytes:
        return self.rng.randbytes(self.rng.randrange(most))

    def broken(self, whole: bytes) -> bytes:
        """Returns the message cut off, with bits flipped, or with pieces repeated or left out."""
        if not whole:
            return self.junk(20)
        rng, data = self.rng, bytearray(whole)
        for _ in range(rng.choice((1, 1, 2, 5))):
            at = rng.randrange(len(data)) if data else 0
            way = rng.randrange(5)
            if way == 0:
                del data[at:]
            elif way == 1 and data:
                data[at] ^= 1 << rng.randrange(8)
            elif way == 2:
                data[at:at] = rng.randbytes(rng.randrange(9))
            elif way == 3:
                del data[at : at + rng.randrange(1, 9)]
            else:
                data += data[at : at + 40]
        return bytes(data)
