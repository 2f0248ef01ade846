"""NodeService: what the node has, and the sessions on it."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import grpc
import structlog

from hearth_proto import PROTOCOL_MAX, PROTOCOL_MIN
from hearth_proto.v1 import node_pb2
from hearthd import version
from hearthd.front.calls import serialize
from hearthd.front.device_service import Limits
from hearthd.front.refusals import Context
from hearthd.front.rpc import CallObserver, guarded
from hearthd.front.sessions import SessionTable, negotiate
from hearthd.front.supervisor import Supervisor

log = structlog.get_logger("hearthd.node")

NAME = "hearth.v1.NodeService"
FEATURES = ("execute", "single_calls", "transfers", "collectives", "health", "reflection")


class NodeService:
    """Sessions and the node's description."""

    def __init__(
        self,
        sessions: SessionTable,
        supervisor: Supervisor,
        limits: Limits,
        observer: CallObserver,
        on_drain: Callable[[], None],
    ) -> None:
        self._sessions = sessions
        self._supervisor = supervisor
        self._limits = limits
        self._observer = observer
        self._on_drain = on_drain
        self._node = socket.gethostname()

    def handler(self) -> grpc.GenericRpcHandler[Any, Any]:
        """What the gRPC server registers."""
        behaviours: dict[str, Any] = {
            "Describe": self.describe,
            "OpenSession": self.open_session,
            "RenewSession": self.renew_session,
            "CloseSession": self.close_session,
            "ListSessions": self.list_sessions,
            "Drain": self.drain,
        }
        handlers = {
            method: grpc.unary_unary_rpc_method_handler(
                guarded(NAME, method, behaviour, self._observer),
                request_deserializer=getattr(node_pb2, f"{method}Request").FromString,
                response_serializer=serialize,
            )
            for method, behaviour in behaviours.items()
        }
        return grpc.method_handlers_generic_handler(NAME, handlers)

    async def describe(self, request: node_pb2.DescribeRequest, context: Context) -> node_pb2.DescribeResponse:
        return node_pb2.DescribeResponse(
            node=self._node,
            server_version=version(),
            protocol=node_pb2.VersionRange(min=PROTOCOL_MIN, max=PROTOCOL_MAX),
            devices=self._devices(),
            features=FEATURES,
            draining=self._sessions.draining,
        )

    async def open_session(self, request: node_pb2.OpenSessionRequest, context: Context) -> Any:
        protocol = negotiate(request.protocol.min, request.protocol.max)
        session, token = self._sessions.open(request.client_name, request.client_version)
        return node_pb2.OpenSessionResponse(
            session_id=session.id,
            session_token=token,
            protocol=protocol,
            server_version=version(),
            lease_ns=_ns(session.lease),
            limits=self._limits.message(),
            devices=self._devices(),
            features=FEATURES,
            node=self._node,
        )

    async def renew_session(self, request: node_pb2.RenewSessionRequest, context: Context) -> Any:
        session = self._sessions.find(request.session_token)
        return node_pb2.RenewSessionResponse(lease_ns=_ns(session.lease))

    async def close_session(self, request: node_pb2.CloseSessionRequest, context: Context) -> Any:
        session = self._sessions.find(request.session_token)
        await self._sessions.close(session, "its client closed it")
        return node_pb2.CloseSessionResponse()

    async def list_sessions(self, request: node_pb2.ListSessionsRequest, context: Context) -> Any:
        return node_pb2.ListSessionsResponse(
            sessions=[
                node_pb2.SessionInfo(
                    session_id=session.id,
                    client_name=session.client_name,
                    opened_unix_ns=session.opened_unix_ns,
                    connected=session.connections > 0,
                    lease_left_ns=0 if session.connections else _ns(self._sessions.lease_left(session)),
                    devices=sorted(session.channels),
                )
                for session in self._sessions
            ]
        )

    async def drain(self, request: node_pb2.DrainRequest, context: Context) -> node_pb2.DrainResponse:
        self._on_drain()
        return node_pb2.DrainResponse(sessions=len(self._sessions))

    def _devices(self) -> list[node_pb2.Device]:
        return [device.describe() for device in self._supervisor]


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)
