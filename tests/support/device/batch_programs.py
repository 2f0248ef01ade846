"""Programs of batches, and the responses that a client receives."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

from hypothesis import strategies as st

from hearth_proto.frames import Flag, Frame, Kind
from hearth_proto.v1 import commands_pb2 as c
from hearth_proto.v1 import device_pb2
from tests.support.device.lane_rig import Client, add, sync
from tests.support.device.passing import Passing
from tests.support.device.rig import Command


def launch(summand: int, **kind: Any) -> bytes:
    return add(summand, **kind).launches


WRONG = st.sampled_from([{"function": 9}, {"buffer": 9}, {"stream": 9}, {"offset": 64}, {"block": 0}])
LAUNCH = st.builds(lambda what, stream: launch(what, stream=stream), st.integers(1, 3), st.sampled_from([0, 0, 0, 5]))
FRESH = st.builds(launch, st.integers(100, 1 << 60))
BROKEN = st.one_of(
    st.builds(lambda wrong: launch(1, **wrong), WRONG),
    st.builds(lambda whole, size: whole[:size], LAUNCH, st.integers(1, 80)),
)


class Step(NamedTuple):
    """A batch. `waits`: the next batch is sent after this one has been answered."""

    commands: tuple[c.Command, ...]
    waits: bool


def run(rig: Passing, program: Sequence[Step]) -> list[bytes]:
    """Runs a program; returns the answers, of which the last holds the buffer's contents."""
    channel = next(rig.channels)
    rig.send(Kind.OPEN, b'{"session": "me", "tenant": "t"}', channel=channel)
    client = rig.lane(channel)
    client.batch(
        Command(load_module=c.LoadModule(module=1, kind=c.CODE_KIND_CUDA_CPP, code=rig.source)),
        Command(get_function=c.GetFunction(function=1, module=1, name="add")),
        Command(allocate=c.Allocate(buffer=1, size=8)),
        Command(fill=c.Fill(buffer=1, size=8, pattern=b"\0")),
        Command(create_stream=c.CreateStream(stream=5)),
        sync(1),
        Command(request=2, describe_module=c.DescribeModule(module=1)),  # a launch in a capture waits for its module
    )
    requests = itertools.count(3)
    heard = Heard(client, [1, 2])
    heard.all()
    for step in program:
        step_requests = []
        commands = []
        for command_of_step in step.commands:
            command = Command()
            command.CopyFrom(command_of_step)
            if command.request:
                command.request = next(requests)
                step_requests.append(command.request)
            if command.WhichOneof("kind") == "sync":
                heard.streams[command.request] = -1 if command.sync.all_streams else command.stream
            commands.append(command)
        heard.asked += step_requests
        client.batch(*commands)
        if step.waits:
            heard.all()
    last = next(requests)
    heard.asked.append(last)
    client.batch(Command(request=last, read=c.Read(buffer=1, size=8)))
    heard.all()
    assert rig.end_lane(channel) == client.seq
    copies = [frame for frame in rig.copies() if frame.channel == channel]
    assert all(frame.flags == Flag.LANED for frame in copies)
    acks = [frame.id for frame in copies if frame.id]
    assert acks == sorted(set(acks)) and acks[-1] == client.seq
    front_copies = [frame.payload for frame in copies if frame.kind == Kind.RESPONSE]
    assert front_copies == heard.responses, "the front keeps the client's responses"
    rig.send(Kind.CLOSE, channel=channel)
    rig.until(Kind.CLOSED)
    client.end.close()
    assert heard.in_order()
    # the answer to request 2 contains the duration of the compile
    return sorted(response for response in heard.responses if number(response) != 2)


class Heard:
    """Responses that a client has received."""

    def __init__(self, client: Client, asked: list[int]) -> None:
        self.client = client
        self.asked = asked
        self.streams: dict[int, int] = {}
        self.responses: list[bytes] = []
        self._acked = 0

    def all(self) -> None:
        """Reads until all requests have been answered."""
        while len(self.responses) < len(self.asked):
            frame: Frame = self.client.next()
            if frame.kind == Kind.ACK:
                assert self._acked < frame.id <= self.client.seq
                self._acked = frame.id
            else:
                self.responses.append(frame.payload)

    def in_order(self) -> bool:
        """Returns whether the syncs of each stream were answered in order."""
        answered = [number(response) for response in self.responses]
        rows = [
            [request for request in answered if self.streams.get(request) == row] for row in set(self.streams.values())
        ]
        return all(row == sorted(row) for row in rows)


def number(response: bytes) -> int:
    """Returns the number of the request that a response answers."""
    return device_pb2.ExecuteResponse.FromString(response).result.request
