"""Several sessions on one device process, each with launches of a known duration, driven without a front."""

from __future__ import annotations

import json
import select
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hearth_proto.frames import Frame, Kind
from hearth_proto.launches import LayoutEntry, Record, pack, pack_layout
from hearth_proto.v1 import commands_pb2 as c
from hearth_proto.v1 import device_pb2
from tests.support.device.link import DeviceLink

SOURCES = {
    "cpu": b"""
extern "C" __global__ void rest(unsigned long long* done, long long nanoseconds) {
    for (; nanoseconds > 0; nanoseconds -= 1000000) __nanosleep(nanoseconds);
    if (!blockIdx.x) *done += 1;
}
""",
    "cuda": b"""
extern "C" __global__ void rest(unsigned long long* done, long long nanoseconds) {
    unsigned long long start, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
    do asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)); while ((long long)(now - start) < nanoseconds);
    if (!blockIdx.x && !threadIdx.x) *done += 1;
}
""",
}
"""A kernel of a known duration. On the CPU it sleeps, because the machine's processors are shared with other tests."""
LAYOUT = pack_layout([LayoutEntry(0, 8, pointer=True), LayoutEntry(8, 8)])


@dataclass
class Member:
    """A session: `nanoseconds` is the duration of a launch, `launches` the number of launches in a batch, `window` the
    maximum number of unacknowledged batches."""

    channel: int
    tenant: str = ""
    weight: float = 1.0
    priority: int = 0
    nanoseconds: int = 20_000
    launches: int = 16
    window: int = 8
    grid: int = 1
    block: int = 1
    seq: int = 0
    acked: int = 0
    sent_at: dict[int, float] = field(default_factory=dict)
    waits: list[float] = field(default_factory=list)
    """Seconds from the sending of each batch to its acknowledgement."""
    batch: bytes = b""
    """The launch records of one batch."""

    @property
    def session(self) -> str:
        return f"session-{self.channel}"

    @property
    def done(self) -> int:
        return self.acked * self.launches


class Crowd(DeviceLink):
    """A device process with any number of members; `metered` is the device time of each session, in seconds, as the
    device process reported it."""

    def __init__(self, spec: Any, **more: Any) -> None:
        super().__init__(spec, **more)
        self.source = SOURCES[spec.backend]
        self.members: dict[int, Member] = {}
        self.metered: dict[str, float] = {}
        self.busy: list[int] = []
        self.poll = select.poll()
        self.poll.register(self.sock, select.POLLIN)

    def join(self, **fields: Any) -> Member:
        """Opens a session with its module, its function 1 and a counter in buffer 1."""
        member = Member(len(self.members) + 2, **fields)
        info = {
            "session": member.session, "tenant": member.tenant, "weight": member.weight, "priority": member.priority,
        }  # fmt: skip
        self.send(Kind.OPEN, json.dumps(info).encode(), channel=member.channel)
        for kind in (
            {"load_module": c.LoadModule(module=1, kind=c.CODE_KIND_CUDA_CPP, code=self.source)},
            {"get_function": c.GetFunction(function=1, module=1, name="rest")},
            {"allocate": c.Allocate(buffer=1, size=8)},
            {"fill": c.Fill(buffer=1, size=8, pattern=b"\0")},
            {"describe_module": c.DescribeModule(module=1)},
        ):
            result = self.call(channel=member.channel, **kind)
            assert not result.HasField("error"), result.error.message
        self.members[member.channel] = member
        return member

    def leave(self, member: Member) -> None:
        """Closes the session, and waits until the device process has released its resources."""
        self.send(Kind.CLOSE, channel=member.channel)
        self.until(lambda frame: frame.kind == Kind.CLOSED and frame.channel == member.channel)
        del self.members[member.channel]

    def records(self, member: Member, launches: int | None = None) -> bytes:
        params = bytes(8) + member.nanoseconds.to_bytes(8, "little")
        record = pack(Record(1, 0, (member.grid, 1, 1), (member.block, 1, 1), 0, 0, 0, LAYOUT, (1,), params))
        return record * (member.launches if launches is None else launches)

    def post(self, member: Member, *commands: c.Command) -> int:
        """Sends a batch of the given commands, or else of the member's launches."""
        member.seq += 1
        member.sent_at[member.seq] = time.perf_counter()
        member.batch = member.batch or self.records(member)
        chosen = commands or (c.Command(launches=member.batch),)
        message = device_pb2.ExecuteRequest(batch=c.Batch(seq=member.seq, commands=chosen))
        self.send(Kind.BATCH, message.SerializeToString(), channel=member.channel)
        return member.seq

    def fill(self, *members: Member) -> None:
        """Posts as many batches as the windows accept, one of each member in turn, so that no member has the device to
        itself while the windows of the others are being filled."""
        while below := [member for member in members if member.seq - member.acked < member.window]:
            for member in below:
                self.post(member)

    def round_trip(self, member: Member, launches: int = 1, on_frame: Callable[[Frame], None] | None = None) -> float:
        """Returns the seconds from the sending of a few launches and a Sync to the Sync's answer."""
        began = time.perf_counter()
        commands = [c.Command(launches=self.records(member, launches)), c.Command(request=1, sync=c.Sync())]
        self.post(member, *commands)
        while True:
            frame = self.next()
            if frame.kind == Kind.RESPONSE and frame.channel == member.channel:
                return time.perf_counter() - began
            if on_frame is not None:
                on_frame(frame)

    def count(self, member: Member) -> int:
        """Returns the number of the member's launches that have run, after waiting for all of them."""
        read = self.call(channel=member.channel, read=c.Read(buffer=1, size=8)).read
        return int.from_bytes(read.data, "little")

    def take(self, frame: Frame) -> None:
        """Records the acknowledgements and device times in a frame, whichever wait received it."""
        if frame.kind == Kind.ACK:
            member = self.members[frame.channel]
            now = time.perf_counter()
            for seq in range(member.acked + 1, frame.id + 1):
                member.waits.append(now - member.sent_at.pop(seq))
            member.acked = frame.id
        elif frame.kind == Kind.METER:
            for session, nanoseconds in json.loads(frame.payload).items():
                self.metered[session] = self.metered.get(session, 0.0) + nanoseconds / 1e9
        elif frame.kind == Kind.BUSY:
            self.busy.append(frame.flags)

    def next(self) -> Frame:
        frame = super().next()
        self.take(frame)
        return frame

    def until(self, what: Callable[[Frame], bool]) -> Frame:
        while True:
            frame = self.next()
            if what(frame):
                return frame

    def run(self, seconds: float, *flooding: Member, on_frame: Callable[[Frame], None] = lambda frame: None) -> float:
        """Keeps these members' windows full for `seconds`; returns the actual duration."""
        begin = time.perf_counter()
        while (left := begin + seconds - time.perf_counter()) > 0:
            self.fill(*flooding)
            if self._frames or self.poll.poll(left * 1000):
                on_frame(self.next())
        return time.perf_counter() - begin
