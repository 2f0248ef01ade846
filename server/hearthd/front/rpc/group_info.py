"""DescribeGroups: the groups of a session, with the operations that the flight recorder has recorded for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from hearth_proto.v1 import node_pb2
from hearthd.front.collectives.flight_recorder import FlightRecorder, GroupHistory, RecordedOperation
from hearthd.front.errors import Context
from hearthd.front.sessions.session import Session
from hearthd.front.sessions.session_table import SessionTable


class CrossNodeGroup(Protocol):
    """A session's part in a group over several daemons."""

    id: str
    """The id of the group, in hexadecimal."""

    def info(self) -> node_pb2.GroupInfo:
        """Describes the group, without its operations."""
        ...

    def history(self, recorder: FlightRecorder) -> GroupHistory | None:
        """Returns the group's operations, as far as this daemon knows them.

        `recorder` has the groups that this daemon coordinates.
        """
        ...


class GroupInfo:
    """The method of NodeService that describes groups of every kind.

    Like every method that only reads, it needs no right. A session sees its own groups only.
    """

    def __init__(
        self,
        sessions: SessionTable,
        recorder: FlightRecorder,
        cross_node_groups: Callable[[Session], Iterable[CrossNodeGroup]] = lambda session: (),
    ) -> None:
        self._sessions = sessions
        self._recorder = recorder
        self._cross_node_groups = cross_node_groups

    def behaviours(self) -> Mapping[str, Any]:
        """Returns the methods for NodeService's table."""
        return {"DescribeGroups": self.describe}

    async def describe(
        self, request: node_pb2.DescribeGroupsRequest, context: Context
    ) -> node_pb2.DescribeGroupsResponse:
        """Returns the groups of a session. Raises `SESSION_EXPIRED`.

        Groups of this daemon's devices come first, the most recently used last, followed by groups over several
        daemons. The daemon that created such a group knows the operations of all ranks; other daemons know those of
        their own ranks.
        """
        session = self._sessions.find(request.session_token)
        groups = [
            node_pb2.GroupInfo(
                members=[node_pb2.GroupMember(device=device) for device in members],
                state=history.state,
                detail=history.detail,
                aborts=history.aborts,
                operations=_operations(history),
            )
            for members, history in self._recorder.histories(session.id)
        ]
        groups += [self._describe_cross_node(group) for group in self._cross_node_groups(session)]
        return node_pb2.DescribeGroupsResponse(groups=groups)

    def _describe_cross_node(self, group: CrossNodeGroup) -> node_pb2.GroupInfo:
        info = group.info()
        history = group.history(self._recorder)
        if history is not None:
            info.aborts = history.aborts
            info.operations.extend(_operations(history))
            # If the communicator failed, the next operation creates a new one.
            if info.state == "ready" and history.state == "failed":
                info.state, info.detail = history.state, history.detail
        return info


def _operations(history: GroupHistory) -> list[node_pb2.GroupOperation]:
    return [_operation(entry) for entry in history.operations.values()]


def _operation(entry: RecordedOperation) -> node_pb2.GroupOperation:
    return node_pb2.GroupOperation(
        sequence=entry.sequence,
        what=entry.description,
        state=entry.state,
        presented=sorted(entry.presented),
        presented_unix_ns=min(entry.presented.values(), default=0),
        launched_unix_ns=entry.launched,
        finished_unix_ns=entry.finished,
        error=entry.error,
    )
