"""CreateGroup, JoinGroup and LeaveGroup: groups over several daemons, from the point of view of this daemon.

DescribeGroups: all groups of a session, with the operations that the flight recorder has recorded for them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from hearth_proto.reasons import Reason, Refusal
from hearth_proto.rights import Right
from hearth_proto.v1 import node_pb2
from hearthd.front.addresses import Address
from hearthd.front.collectives.flight_recorder import FlightRecorder, GroupHistory, RecordedOperation
from hearthd.front.errors import Context
from hearthd.front.peers.groups import PeerGroups
from hearthd.front.peers.membership import GroupMembership
from hearthd.front.peers.tickets import Members, check_group, devices_of, members_of, nodes_of
from hearthd.front.rpc.server_call import Behaviour
from hearthd.front.sessions.session import Session
from hearthd.front.sessions.session_table import SessionTable
from hearthd.front.supervisor.supervisor import Supervisor

MAX_TIMEOUT = 86400.0
"""Maximum time, in seconds, for the members of a group to join."""


class GroupService:
    """The methods of NodeService for groups."""

    def __init__(
        self,
        sessions: SessionTable,
        supervisor: Supervisor,
        groups: PeerGroups,
        recorder: FlightRecorder,
        timeout: float,
        fingerprint: Callable[[], bytes],
    ) -> None:
        """Creates the service.

        `timeout`, in seconds, applies to requests that name none. `fingerprint` returns the SHA-256 of this daemon's
        certificate; empty without TLS.
        """
        self._sessions = sessions
        self._supervisor = supervisor
        self._groups = groups
        self._recorder = recorder
        self._timeout = timeout
        self._fingerprint = fingerprint
        groups.on_refused = self._note_refused

    def behaviours(self) -> Mapping[str, Behaviour]:
        """Returns the methods for NodeService's table."""
        return {
            "CreateGroup": self.create,
            "JoinGroup": self.join,
            "LeaveGroup": self.leave,
            "DescribeGroups": self.describe,
        }

    async def create(self, request: node_pb2.CreateGroupRequest, context: Context) -> node_pb2.CreateGroupResponse:
        """Creates a group with this daemon as node 0, and returns its ticket. Does not wait for other nodes.

        Raises `INVALID_ARGUMENT`, `DEVICE_NOT_FOUND`, and the refusals of `_session` and `PeerGroups.create`.
        """
        session = self._session(request.session_token, "CreateGroup")
        members = members_of(request.members)
        self._check_devices(session, members, 0)
        with self._sessions.keep_alive(session):
            group, secret = await self._groups.create(session, members, self._seconds(request.timeout_ns))
        assert self._groups.port is not None
        self._audit("group_create", session, group, members, 0)
        return node_pb2.CreateGroupResponse(
            group=group,
            ticket=node_pb2.GroupTicket(
                addresses=self._groups.port.addresses, secret=secret, certificate_sha256=self._fingerprint()
            ),
        )

    async def join(self, request: node_pb2.JoinGroupRequest, context: Context) -> node_pb2.JoinGroupResponse:
        """Joins a group that another daemon has created. Returns after that daemon has admitted this one.

        Raises `INVALID_ARGUMENT`, `DEVICE_NOT_FOUND`, and the refusals of `_session` and `PeerGroups.join`.
        """
        session = self._session(request.session_token, "JoinGroup")
        group = check_group(request.group)
        members = members_of(request.members)
        nodes = nodes_of(members)
        if request.node == 0 or request.node not in nodes:
            raise Refusal(
                Reason.INVALID_ARGUMENT,
                f"JoinGroup.node is {request.node}; the members' nodes are {', '.join(map(str, nodes))}, and node 0 is "
                "the daemon that created the group.",
                fix="Name the node that the members have for this daemon.",
                details={"requested": request.node, "allowed": ", ".join(map(str, nodes[1:])) or "none"},
                fields=["node"],
            )
        self._check_devices(session, members, request.node)
        with self._sessions.keep_alive(session):
            timeout = self._seconds(request.timeout_ns)
            await self._groups.join(session, group, request.node, members, request.ticket, timeout)
        self._audit("group_join", session, group, members, request.node)
        return node_pb2.JoinGroupResponse()

    async def leave(self, request: node_pb2.LeaveGroupRequest, context: Context) -> node_pb2.LeaveGroupResponse:
        """Removes the session from a group. Needs no right, because it only frees resources."""
        session = self._sessions.find(request.session_token)
        self._groups.leave(session, request.group)
        self._sessions.audit.record("group_leave", session, group=request.group.hex())
        return node_pb2.LeaveGroupResponse()

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
        groups += [self._describe_cross_node(group) for group in self._groups.of(session)]
        return node_pb2.DescribeGroupsResponse(groups=groups)

    def _describe_cross_node(self, group: GroupMembership) -> node_pb2.GroupInfo:
        info = group.info()
        history = group.history(self._recorder)
        if history is not None:
            info.aborts = history.aborts
            info.operations.extend(_operations(history))
            # If the communicator failed, the next operation creates a new one.
            if info.state == "ready" and history.state == "failed":
                info.state, info.detail = history.state, history.detail
        return info

    def _session(self, token: str, operation: str) -> Session:
        """Returns the caller's session if it may create and join groups.

        Raises `PERMISSION_DENIED`, `DRAINING`, or `QUOTA_EXCEEDED` if the tenant's device time is used up.
        """
        session = self._sessions.find(token)
        self._sessions.require(session, (Right.COLLECTIVE,), operation)
        self._sessions.accounts.of(session.tenant).check_time()
        self._sessions.check_draining("takes no part in new groups")
        return session

    def _check_devices(self, session: Session, members: Members, node: int) -> None:
        """Raises `DEVICE_NOT_FOUND` for a device that does not exist for this tenant."""
        for ordinal in devices_of(members, node):
            self._supervisor.find(ordinal, session.tenant)

    def _seconds(self, timeout_ns: int) -> float:
        return min(timeout_ns / 1e9, MAX_TIMEOUT) or self._timeout

    def _note_refused(self, session: Session, addresses: Sequence[Address]) -> None:
        """Records each refusal in the audit log, so that a session that tries many addresses is noticed."""
        reason, address_list = str(Reason.PERMISSION_DENIED), ", ".join(map(str, addresses))
        self._sessions.audit.record("refused", session, operation="JoinGroup", reason=reason, addresses=address_list)

    def _audit(self, event: str, session: Session, group: bytes, members: Members, node: int) -> None:
        devices = sorted(devices_of(members, node))
        self._sessions.audit.record(event, session, group=group.hex(), node=node, devices=devices, ranks=len(members))


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
