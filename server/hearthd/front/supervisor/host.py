"""What a worker needs of its device, and a device of its supervisor."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

from hearth_proto.reasons import Refusal
from hearthd.front.links.link import CollectiveSink, DeviceLink
from hearthd.front.sessions.sessions import Session
from hearthd.front.supervisor.exit_cause import Cause
from hearthd.front.supervisor.isolation import Policy
from hearthd.front.supervisor.process import Process
from hearthd.shared.device_spec import DeviceSpec

if TYPE_CHECKING:
    from hearthd.front.supervisor.worker import Worker


class Host(Protocol):
    """One device, as its workers see it."""

    ordinal: int
    policy: Policy

    async def enter(self, worker: Worker) -> DeviceSpec:
        """Returns when there is room on the device for one more process: what it is to be told."""

    async def start_process(self, spec: DeviceSpec) -> Process:
        """Raises what keeps it from being started; there is room for another one then."""

    def learn(self, process: Process) -> None:
        """A process is ready."""

    async def prepare(self, process: Process, worker: Worker) -> None:
        """What has to be there before the worker's sessions use the process is brought back now."""

    def lost(self, worker: Worker, process: Process | None, cause: Cause, ready: bool) -> str | None:
        """Tells everyone; the session that it was lost to, where that can be known and concerns others."""

    def replace(self, worker: Worker) -> bool:
        """Whether another worker goes on in this one's place."""

    def buried(self, generation: int) -> None:
        """A process is gone, with all that it held."""

    def gone(self, worker: Worker) -> None:
        """It has ended for good."""

    def notify(self) -> None: ...

    async def changed(self) -> None: ...


class Owner(Protocol):
    """Who is told of a device's changes: the supervisor."""

    on_collective: CollectiveSink | None
    sessions: Iterable[Session]

    def blame(self, session: str) -> None:
        """A process that it shared was lost to a session."""

    def barred(self, session: Session) -> Refusal | None:
        """Why a session may share no process."""

    def pardon(self) -> None:
        """Sessions that were barred may share processes again."""

    def notify(self) -> None: ...

    async def changed(self) -> None: ...

    def device_lost(self, link: DeviceLink, why: str) -> None:
        """A process has ended; the channels of its link are still known."""

    async def before_serving(self, link: DeviceLink) -> None:
        """A process is ready: what has to be there before anybody uses it is brought back now."""
