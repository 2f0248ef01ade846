"""CreateGroup, JoinGroup and LeaveGroup: groups over several daemons, from the point of view of this daemon."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hearth_proto.reasons import Reason, Refusal
from hearth_proto.rights import Right
from hearth_proto.v1 import node_pb2
from hearthd.front.addresses import Address
from hearthd.front.errors import Context
from hearthd.front.peers.groups import PeerGroups
from hearthd.front.peers.tickets import Members, check_group, devices_of, members_of, nodes_of
from hearthd.front.sessions.session import Session
from hearthd.front.sessions.session_table import SessionTable

if TYPE_CHECKING:
    from collections.abc import Callable

    from hearthd.front.supervisor.supervisor import Supervisor

MAX_TIMEOUT = 86400.0
"""Maximum time, in seconds, for the members of a group to join."""


class GroupService:
    """The methods of NodeService for groups over several daemons."""

    def __init__(
        self,
        sessions: SessionTable,
        supervisor: Supervisor,
        groups: PeerGroups,
        timeout: float,
        fingerprint: Callable[[], bytes] = lambda: b"",
    ) -> None:
        """Creates the service.

        `timeout`, in seconds, applies to requests that name none. `fingerprint` returns the SHA-256 of this daemon's
        certificate; empty without TLS.
        """
        self._sessions = sessions
        self._supervisor = supervisor
        self._groups = groups
        self._timeout = timeout
        self._fingerprint = fingerprint
        groups.on_refused = self._note_refused

    def behaviours(self) -> Mapping[str, Any]:
        """Returns the methods for NodeService's table."""
        return {"CreateGroup": self.create, "JoinGroup": self.join, "LeaveGroup": self.leave}

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

    def _session(self, token: str, operation: str) -> Session:
        """Returns the caller's session if it may create and join groups.

        Raises `PERMISSION_DENIED`, `DRAINING`, or `QUOTA_EXCEEDED` if the tenant's device time is used up.
        """
        session = self._sessions.find(token)
        try:
            session.tenant.require((Right.COLLECTIVE,), operation)
        except Refusal as refusal:
            self._sessions.audit.refused(session, operation, refusal)
            raise
        self._sessions.accounts.of(session.tenant).check_time()
        if self._sessions.draining:
            raise Refusal(
                Reason.DRAINING,
                "The daemon is draining and takes no part in new groups.",
                fix="Try again when it has been restarted, or use another node.",
                retry_after_s=max(1.0, self._sessions.drain_left()),
            )
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
