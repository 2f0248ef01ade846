"""A fake daemon whose devices form groups over several daemons: it records the requests it gets, and refuses on
demand."""

from __future__ import annotations

import itertools
import threading
from typing import Any

from hearth_proto import reasons
from hearth_proto.v1 import commands_pb2, node_pb2
from tests.support.client.fake_daemon import FakeDaemon, _abort

_ids = itertools.count(1)


class GroupDaemon(FakeDaemon):
    def __init__(self, devices: int = 2) -> None:
        super().__init__(devices=devices)
        self.asked: list[Any] = []
        self.refusals: dict[str, reasons.Refusal] = {}
        self.gates: dict[str, threading.Event] = {}
        """Method -> event that must be set before the method answers."""
        self.groups: set[bytes] = set()
        self.described: list[node_pb2.GroupInfo] = []

    def do(self, kind: str, command: Any, result: Any) -> None:
        if kind not in (
            "allocate",
            "free",
            "fill",
            "copy",
            "write",
        ):  # the handles belong to several devices, and device memory is not simulated
            super().do(kind, command, result)

    @property
    def collectives(self) -> list[tuple[int, commands_pb2.Collective]]:
        """Returns (stream, command) of each collective that was received."""
        return [
            (command.stream, command.collective)
            for command in list(self.commands)
            if command.WhichOneof("kind") == "collective"
        ]

    def requests(self, kind: type) -> list[Any]:
        return [request for request in list(self.asked) if isinstance(request, kind)]

    def _record_request(self, method: str, request: Any, context: Any) -> None:
        self.asked.append(request)
        if method in self.gates:
            assert self.gates[method].wait(10)
        if method in self.refusals:
            _abort(context, self.refusals[method])

    def CreateGroup(self, request: Any, context: Any) -> node_pb2.CreateGroupResponse:
        self._record_request("CreateGroup", request, context)
        group = next(_ids).to_bytes(16, "big")
        self.groups.add(group)
        ticket = node_pb2.GroupTicket(addresses=["127.0.0.1:1"], secret=b"secret")
        return node_pb2.CreateGroupResponse(group=group, ticket=ticket)

    def JoinGroup(self, request: Any, context: Any) -> node_pb2.JoinGroupResponse:
        self._record_request("JoinGroup", request, context)
        self.groups.add(request.group)
        return node_pb2.JoinGroupResponse()

    def LeaveGroup(self, request: Any, context: Any) -> node_pb2.LeaveGroupResponse:
        self._record_request("LeaveGroup", request, context)
        self.groups.discard(request.group)
        return node_pb2.LeaveGroupResponse()

    def DescribeGroups(self, request: Any, context: Any) -> node_pb2.DescribeGroupsResponse:
        self._record_request("DescribeGroups", request, context)
        return node_pb2.DescribeGroupsResponse(groups=self.described)
