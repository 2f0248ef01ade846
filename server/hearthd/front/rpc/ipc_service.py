"""ExportIpc and ReleaseIpc: hand the memory of a buffer from its device process to a client on this host.

The memory is handed over as an open file. The device process reports when the memory is available, and sends the file
over the socket that accompanies its link. The client fetches it with a ticket from the Unix socket of lanes. The front
keeps the file only as long as the ticket is valid.
"""

from __future__ import annotations

import array
import asyncio
import os
import socket
from collections.abc import Mapping
from functools import partial
from typing import Any, cast

from hearth_proto import frames
from hearth_proto.frames import Kind
from hearth_proto.reasons import Reason, Refusal
from hearth_proto.v1 import device_pb2
from hearthd.front.errors import Context
from hearthd.front.lanes.listener import LanePort
from hearthd.front.lanes.tickets import LIFETIME
from hearthd.front.links.exported_files import ExportedFiles
from hearthd.front.links.link import DeviceLink
from hearthd.front.rpc.server_call import Behaviour
from hearthd.front.rpc.shielded_task import ShieldedTask
from hearthd.front.rpc.unary import WithChannel
from hearthd.front.sessions.channel import Channel
from hearthd.front.sessions.session import Session
from hearthd.front.sessions.session_table import SessionTable
from hearthd.front.supervisor.supervisor import Supervisor

FILE = "lent"
"""The kind of the messages in which device processes send memory."""


class ExportedMemory:
    """Exported memory that waits to be fetched by its client. The ticket identifies this object."""

    kind = "ipc"

    def __init__(self, session: Session, file: int) -> None:
        self.session = session
        self._file = file

    async def hand_over(self, connection: int) -> None:
        """Sends the file over the client's connection. Raises OSError if that fails."""
        with socket.socket(fileno=os.dup(connection)) as sock:
            file = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [self._file]))
            sock.sendmsg([frames.encode(Kind.LIVE, b"")], [file])
        self.close()

    def close(self) -> None:
        """Closes the file. A second call does nothing."""
        if self._file >= 0:
            file, self._file = self._file, -1
            os.close(file)


class IpcService:
    """The methods of DeviceService that hand memory to other processes on this host."""

    def __init__(
        self, sessions: SessionTable, supervisor: Supervisor, with_channel: WithChannel, lanes: LanePort
    ) -> None:
        self._sessions = sessions
        self._with_channel = with_channel
        self._lanes = lanes
        self._files = ExportedFiles(FILE)
        self._shielded = ShieldedTask()
        supervisor.prepare.append(self._watch)

    def behaviours(self) -> Mapping[str, Behaviour]:
        """Returns the methods for DeviceService's table."""
        return {"ExportIpc": self._export, "ReleaseIpc": self._release}

    # ---- methods ----

    async def _export(self, request: Any, context: Context) -> Any:
        session = self._sessions.find(request.target.session_token)
        local = context.peer().startswith("unix:")

        async def work(channel: Channel) -> Any:
            if not local:
                raise Refusal(
                    Reason.UNSUPPORTED,
                    "Memory is exported to processes on the daemon's own host, over its Unix socket; this client is "
                    f"connected by {context.peer().partition(':')[0]}.",
                    fix='Connect through the socket: hearth.connect("unix:/run/hearth/hearth.sock"); or copy with '
                    "x.get().",
                )
            return await self._shielded.run(partial(self._export_memory, request, session, channel))

        return await self._with_channel(request.target, work, "ExportIpc")

    async def _export_memory(self, request: Any, session: Session, channel: Channel) -> Any:
        link = cast(DeviceLink, channel.link)
        body = {"op": "lend", "buffer": request.buffer, "export": request.export}
        answer, file = await self._files.ask(link, body, channel.number, "the exported buffer")
        memory = ExportedMemory(session, file)
        offer = self._lanes.offer(memory)
        if offer is None:
            memory.close()
            await link.ask(Kind.EXPORT, {"op": "release", "export": request.export}, channel.number)
            raise Refusal(
                Reason.UNSUPPORTED,
                "This daemon has no Unix socket for lanes, over which memory is passed to its clients.",
                fix="Start it with lanes.enabled = true and a Unix socket, or copy with x.get().",
            )
        asyncio.get_running_loop().call_later(LIFETIME + 1.0, memory.close)
        self._sessions.audit.record(
            "export", session, device=request.target.device, buffer=request.buffer, size=answer["size"]
        )
        return device_pb2.ExportIpcResponse(
            path=offer.path,
            ticket=offer.ticket,
            valid_ns=offer.valid_ns,
            size=answer["size"],
            allocation_bytes=answer["allocation"],
            generation=link.generation,
        )

    async def _release(self, request: Any, context: Context) -> Any:
        async def work(channel: Channel) -> Any:
            await channel.link.ask(Kind.EXPORT, {"op": "release", "export": request.export}, channel.number)
            return device_pb2.ReleaseIpcResponse()

        return await self._with_channel(request.target, work, "ReleaseIpc")

    async def _watch(self, link: DeviceLink) -> None:
        self._files.watch(link)
