"""Calls of NodeService without a session, for programs that watch and operate a daemon.

A session counts against quotas and is refused while the daemon drains, which is when an operator needs this
information. Every call sends its credentials, as the opening of a session does.
"""

from __future__ import annotations

import json
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from hearth.endpoint.credentials import bearer, opening
from hearth.endpoint.open_session import framed_transport, grpc_transport
from hearth.errors import ClosedError, HearthError, UnsupportedError
from hearth_proto.v1 import node_pb2

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from hearth.endpoint.credentials import Credentials
    from hearth.endpoint.target import Target
    from hearth.transport.base import Answer, Transport
    from hearth.types import NodeInfo, SessionInfo

_TRIES = 2
_REPEATABLE = frozenset({"Describe", "GetStatus", "ListSessions"})
"""Calls that may be repeated if the connection broke before their answer arrived."""
_LAST_CALL_S = 1.0
"""Time limit in seconds of calls that begin shortly before the deadline, or after it."""


class AdminClient:
    """Sends requests to one daemon, which may be unreachable in between. `close` may be called from another thread.

    Every call blocks, and raises the errors of `hearth.connect`, and `UnsupportedError` if the daemon is too old for
    it.
    """

    def __init__(self, target: Target, credentials: Credentials, timeout: float = 10.0) -> None:
        """Stores the address; the first call connects. `timeout` is the time limit of each call in seconds."""
        self.target = target
        self._credentials = credentials
        self._timeout = timeout
        self.deadline: float | None = None
        """Time (`time.monotonic`) at which further calls end, but no earlier than a second after they begin."""
        self._transports: dict[str, Transport] = {}
        self._closed = False

    def describe(self) -> NodeInfo:
        """Returns name, versions, features, and devices with their properties."""
        from hearth.types import NodeInfo

        return NodeInfo.of(self._call("Describe", node_pb2.DescribeRequest(), node_pb2.DescribeResponse))

    def status(self) -> dict[str, Any]:
        """Returns the document of HTTP's ``/status``, as far as the caller may see it."""
        answer = self._call("GetStatus", node_pb2.GetStatusRequest(), node_pb2.GetStatusResponse)
        try:
            document = json.loads(answer.json)
        except ValueError:
            document = None
        if not isinstance(document, dict):
            raise HearthError(
                f"the daemon at {self.target.address} did not return a status document.",
                fix="install the same version on both sides.",
            )
        return document

    def sessions(self) -> list[SessionInfo]:
        """Lists the sessions that the caller may see."""
        from hearth.types import SessionInfo

        response = self._call("ListSessions", node_pb2.ListSessionsRequest(), node_pb2.ListSessionsResponse)
        return [SessionInfo.of(entry) for entry in response.sessions]

    def end_session(self, session_id: str) -> list[int]:
        """Ends a session, like `Node.end_session`.

        Args:
            session_id: Public id of the session.

        Returns:
            The ordinals of devices on which a kernel of the session is still running.
        """
        request = node_pb2.EndSessionRequest(session_id=session_id)
        return list(self._call("EndSession", request, node_pb2.EndSessionResponse).running)

    def drain(self) -> int:
        """Makes the daemon refuse new sessions, like `Node.drain`. Returns the number of sessions that continue."""
        return int(self._call("Drain", node_pb2.DrainRequest(), node_pb2.DrainResponse).sessions)

    def restart_device(self, ordinal: int) -> None:
        """Restarts the processes of a device, like `Node.restart_device`.

        Args:
            ordinal: Number of the device on the node, from 0.
        """
        request = node_pb2.RestartDeviceRequest(device=ordinal)
        self._call("RestartDevice", request, node_pb2.RestartDeviceResponse)

    def close(self) -> None:
        """Ends a call in progress, and closes the connections."""
        self._closed = True
        for transport in list(self._transports.values()):
            transport.close()

    def __enter__(self) -> AdminClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ---- internals ----

    def _call(self, method: str, request: Any, response_type: Any) -> Any:
        try:
            return self._call_repeatedly(method, request, response_type)
        except UnsupportedError as error:
            raise self._not_implemented(method, error) from None

    def _call_repeatedly(self, method: str, request: Any, response_type: Any) -> Any:
        deadline = time.monotonic() + self._timeout
        attempts_left = _TRIES if method in _REPEATABLE else 1
        while True:
            attempts_left -= 1
            try:
                return self._once(method, request, response_type)
            except HearthError as error:
                if self._closed or isinstance(error, ClosedError):
                    raise
                if not (error.broken and attempts_left):
                    from hearth.endpoint.diagnostics import explain

                    raise explain(error, self.target, self._credentials, deadline) from None

    def _once(self, method: str, request: Any, response_type: Any) -> Any:
        answer = self._start(method, request, response_type)
        try:
            return answer.result()
        except BaseException:  # e.g. KeyboardInterrupt: no caller receives the answer
            answer.cancel()
            raise

    def _start(self, method: str, request: Any, response_type: Any) -> Answer:
        """Starts a call: with frames if the daemon accepts them, otherwise with gRPC."""
        credentials, timeout = self._credentials, self._timeout
        if self.deadline is not None:
            timeout = min(timeout, max(_LAST_CALL_S, self.deadline - time.monotonic()))
        if self.target.unix_path:
            framed = self._transport("frames", partial(framed_transport, self.target))
            framed.metadata = bearer(credentials)  # the daemon reads this process's user from the socket
            try:
                return framed.start_call(method, request, response_type, timeout)
            except HearthError as error:
                if not error.broken:
                    raise
        grpc = self._transport("grpc", partial(grpc_transport, self.target, credentials))
        grpc.metadata = opening(credentials, self.target)  # a ticket is valid for one call
        return grpc.start_call(method, request, response_type, timeout)

    def _transport(self, protocol: str, make: Callable[[], Transport]) -> Transport:
        if protocol not in self._transports:
            self._transports[protocol] = make()
        if self._closed:
            self._transports[protocol].close()
        return self._transports[protocol]

    def _not_implemented(self, method: str, error: UnsupportedError) -> UnsupportedError:
        """Builds the error for a daemon that does not implement the call."""
        from hearth_proto import VERSION

        try:
            node = self._call_repeatedly("Describe", node_pb2.DescribeRequest(), node_pb2.DescribeResponse)
        except HearthError:
            return error
        return UnsupportedError(
            f"the daemon at {self.target.address} is hearthd {node.server_version}, which does not "
            f"support {method}; this client is {VERSION}.",
            fix="install the same version on both sides.",
        )
