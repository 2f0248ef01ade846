"""NodeService: the node's description and its sessions, restricted to what the caller may see."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from functools import partial
from typing import Any

import structlog

from hearth_proto import PROTOCOL_MAX, PROTOCOL_MIN, VERSION
from hearth_proto.reasons import Reason, Refusal
from hearth_proto.rights import Right
from hearth_proto.v1 import node_pb2
from hearthd.front import errors
from hearthd.front.admission.gate import AdmissionGate, GatedService
from hearthd.front.admission.gate import caller as admitted_caller
from hearthd.front.connections.peers import pids_of
from hearthd.front.errors import Context
from hearthd.front.rpc.device_service import ClientLimits
from hearthd.front.rpc.framed_context import FramedCall
from hearthd.front.rpc.group_service import GroupService
from hearthd.front.rpc.node_status import NodeStatus
from hearthd.front.rpc.server_call import Behaviour, CallObserver, guarded, unary_handlers
from hearthd.front.sessions.client_process import ClientProcess
from hearthd.front.sessions.session import Session, SessionEnd
from hearthd.front.sessions.session_table import SessionTable, negotiate
from hearthd.front.supervisor.supervisor import Supervisor
from hearthd.front.tenancy.tenants import Tenant, sees_tenant

log = structlog.get_logger("hearthd.node")

NAME = "hearth.v1.NodeService"
FEATURES = (
    "execute",
    "single_calls",
    "transfers",
    "resume",
    "collectives",
    "groups",
    "health",
    "reflection",
    "integers",
    "premul_sum",
    "struct_pointers",
    "graph_composition",
    "graph_memory",
    "graph_conditionals",
    "graph_branches",
    "dispatch_options",
    "launch_attributes",
    "linking",
    "published_events",
)


class NodeService:
    """The gRPC service for sessions and the description of the node."""

    def __init__(
        self,
        sessions: SessionTable,
        supervisor: Supervisor,
        limits: ClientLimits,
        observer: CallObserver,
        on_drain: Callable[[], None],
        gate: AdmissionGate,
        groups: GroupService,
        status: NodeStatus,
    ) -> None:
        self._groups = groups
        self._status = status
        self._sessions = sessions
        self._supervisor = supervisor
        self._limits = limits
        self._observer = observer
        self._on_drain = on_drain
        self._gate = gate
        self._node = socket.gethostname()

    def handler(self) -> GatedService:
        """Returns the service for the gRPC server to register."""
        behaviours: dict[str, Behaviour] = {
            "Describe": self.describe,
            "OpenSession": self.open_session,
            "RenewSession": self.renew_session,
            "CloseSession": self.close_session,
            "ListSessions": self.list_sessions,
            "GetStatus": self.get_status,
            "Drain": self.drain,
            "EndSession": self.end_session,
            "RestartDevice": self.restart_device,
            **self._groups.behaviours(),
        }
        return self._gate.service(NAME, unary_handlers(node_pb2, behaviours, self._guard))

    def _guard(self, method: str, behaviour: Behaviour) -> Behaviour:
        return guarded(self._gate.method_gate(NAME, method), behaviour, self._observer)

    async def describe(self, request: node_pb2.DescribeRequest, context: Context) -> node_pb2.DescribeResponse:
        """Returns the node, its versions and features, and the devices that the caller may use."""
        caller = admitted_caller()
        return node_pb2.DescribeResponse(
            node=self._node,
            server_version=VERSION,
            protocol=node_pb2.VersionRange(min=PROTOCOL_MIN, max=PROTOCOL_MAX),
            devices=self._devices(caller.tenant),
            features=FEATURES,
            draining=self._sessions.draining,
        )

    async def open_session(self, request: node_pb2.OpenSessionRequest, context: Context) -> Any:
        """Opens a session for the caller.

        Raises `VERSION_UNSUPPORTED`, `INVALID_ARGUMENT`, `PERMISSION_DENIED` for a dedicated session without the right,
        and the refusals of `SessionTable.open`.
        """
        caller = admitted_caller()
        protocol = negotiate(request.protocol.min, request.protocol.max)
        dedicated = _is_dedicated(request.isolation)
        try:
            if dedicated:
                caller.tenant.require((Right.DEDICATED,), "open a dedicated session")
            session, token = self._sessions.open(
                request.client_name,
                request.client_version,
                caller,
                dedicated=dedicated,
                launch_timeout=request.launch_timeout_ns / 1e9,
                client_process=request.client_process,
                watch=partial(_client_process, context, request.client_process),
            )
        except Refusal as refusal:
            self._sessions.audit.refused(caller, "OpenSession", refusal)
            raise
        return node_pb2.OpenSessionResponse(
            session_id=session.id,
            session_token=token,
            protocol=protocol,
            server_version=VERSION,
            lease_ns=_ns(session.lease),
            limits=self._limits.message(),
            devices=self._devices(caller.tenant),
            features=FEATURES,
            node=self._node,
            tenant=caller.tenant.name,
            isolation=_isolation(session),
        )

    async def renew_session(self, request: node_pb2.RenewSessionRequest, context: Context) -> Any:
        """Returns the lease of a session, which the look-up of its token has renewed. Raises `SESSION_EXPIRED`."""
        session = self._sessions.find(request.session_token)
        return node_pb2.RenewSessionResponse(lease_ns=_ns(session.lease))

    async def close_session(self, request: node_pb2.CloseSessionRequest, context: Context) -> Any:
        """Closes the caller's session. Raises `SESSION_EXPIRED`.

        `running`: the devices that have not freed its memory, because a kernel of the session still runs there.
        """
        session = self._sessions.find(request.session_token)
        return node_pb2.CloseSessionResponse(running=await self._sessions.close(session, "its client closed it"))

    async def list_sessions(self, request: node_pb2.ListSessionsRequest, context: Context) -> Any:
        """Returns the open sessions that the caller may see. `lease_left_ns` is 0 for a connected session."""
        caller = admitted_caller()
        return node_pb2.ListSessionsResponse(
            sessions=[
                node_pb2.SessionInfo(
                    session_id=session.id,
                    client_name=session.client_name,
                    client_process=session.client_process,
                    opened_unix_ns=session.opened_unix_ns,
                    connected=session.connections > 0,
                    lease_left_ns=0 if session.connections else _ns(self._sessions.lease_left(session)),
                    devices=sorted(session.channels),
                    tenant=session.tenant.name,
                    isolation=_isolation(session),
                    device_ns=session.device_ns,
                )
                for session in self._sessions
                if sees_tenant(caller.tenant, session.tenant.name)
            ]
        )

    async def get_status(self, request: node_pb2.GetStatusRequest, context: Context) -> node_pb2.GetStatusResponse:
        """Returns the status as JSON text; see `NodeStatus.document`."""
        caller = admitted_caller()
        return node_pb2.GetStatusResponse(json=json.dumps(await self._status.document(caller.tenant)))

    # ---- for operators ----

    async def drain(self, request: node_pb2.DrainRequest, context: Context) -> node_pb2.DrainResponse:
        """Begins to drain the daemon, and returns the number of open sessions without waiting. Needs `Right.ADMIN`."""
        caller = admitted_caller()
        self._sessions.require(caller, (Right.ADMIN,), "Drain")
        self._sessions.audit.record("drain", caller=caller, sessions=len(self._sessions))
        self._on_drain()
        return node_pb2.DrainResponse(sessions=len(self._sessions))

    async def end_session(self, request: node_pb2.EndSessionRequest, context: Context) -> Any:
        """Ends a session.

        A session of the caller's own tenant needs no right; other sessions need `Right.ADMIN`. A session that the
        caller may not see is treated as missing.
        """
        caller = admitted_caller()
        sessions = [session for session in self._sessions if session.id == request.session_id]
        if not sessions or not sees_tenant(caller.tenant, sessions[0].tenant.name):
            refusal = errors.session_not_found(request.session_id)
            self._sessions.audit.refused(caller, "EndSession", refusal)
            raise refusal
        session = sessions[0]
        if session.tenant.name != caller.tenant.name:
            self._sessions.require(caller, (Right.ADMIN,), "EndSession")
        self._sessions.audit.record("session_ended", session, by=caller.tenant.name, by_credential=caller.credential)
        running = await self._sessions.close(
            session, f"tenant {caller.tenant.name} ended it", cause=SessionEnd.OPERATOR
        )
        return node_pb2.EndSessionResponse(running=running)

    async def restart_device(self, request: node_pb2.RestartDeviceRequest, context: Context) -> Any:
        """Kills the processes of a device and starts new ones, without waiting for that. Needs `Right.ADMIN`."""
        caller = admitted_caller()
        self._sessions.require(caller, (Right.ADMIN,), "RestartDevice")
        device = self._supervisor.find(request.device, caller.tenant)
        self._sessions.audit.record("restart_device", caller=caller, device=device.ordinal)
        device.restart()
        return node_pb2.RestartDeviceResponse()

    def _devices(self, tenant: Tenant) -> list[node_pb2.Device]:
        return [device.describe(tenant) for device in self._supervisor.visible(tenant)]


def _client_process(context: Context, declared: str) -> ClientProcess | None:
    """Returns the process of the client of a framed call, to be watched.

    `declared` is the host and pid that the client declares. None if the pid is not that of the process that has
    connected, which is then a proxy such as sshd: its end does not mean that the client has ended.
    """
    pid = declared.rpartition(":")[2]
    if not isinstance(context, FramedCall) or not pid.isdecimal() or int(pid) not in pids_of(context.pid):
        return None
    return context.process()


def _is_dedicated(isolation: int) -> bool:
    if isolation not in node_pb2.Isolation.values():
        raise Refusal(
            Reason.INVALID_ARGUMENT,
            f"OpenSession.isolation is {isolation}; there are {', '.join(node_pb2.Isolation.keys())}.",
            fix="Omit it for the daemon's default.",
            details={"requested": isolation},
            fields=["isolation"],
        )
    return isolation == node_pb2.ISOLATION_DEDICATED


def _isolation(session: Session) -> node_pb2.Isolation:
    return node_pb2.ISOLATION_DEDICATED if session.dedicated else node_pb2.ISOLATION_SHARED


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)
