"""The parts of a daemon: each is created once, and gets the other parts that it needs."""

from __future__ import annotations

from functools import partial

from hearthd.front.admission.account import UnauthenticatedBytes
from hearthd.front.admission.gate import AdmissionGate
from hearthd.front.admission.limits import AdmissionLimits
from hearthd.front.collectives.metrics import CollectiveMetrics
from hearthd.front.collectives.router import CollectiveRouter
from hearthd.front.config.loader import Config
from hearthd.front.connections.limits import ConnectionLimits
from hearthd.front.daemon.access import Access
from hearthd.front.daemon.config_changes import ConfigChanges, isolation_policy
from hearthd.front.daemon.drain import Drain
from hearthd.front.daemon.listeners import Listeners
from hearthd.front.daemon.reload import Read, Reloader
from hearthd.front.daemon.systemd import Notifier
from hearthd.front.durable.store import DurableStore
from hearthd.front.lanes.listener import LanePort
from hearthd.front.lanes.stripe_port import StripePort
from hearthd.front.links.link import DeviceLink
from hearthd.front.metrics.collector import Metrics
from hearthd.front.overload.manager import OverloadManager
from hearthd.front.peers.connect import PeerConnector
from hearthd.front.peers.groups import PeerGroups
from hearthd.front.peers.targets import PeerTargets
from hearthd.front.resources.time_credits import TimeCredits
from hearthd.front.rpc import device_service, node_service
from hearthd.front.rpc.bulk_service import BulkLimits, BulkService
from hearthd.front.rpc.group_service import GroupService
from hearthd.front.rpc.node_status import NodeStatus
from hearthd.front.sessions.attach import ExecuteWindow
from hearthd.front.sessions.recent_traces import RecentTraces
from hearthd.front.sessions.session_table import SessionTable
from hearthd.front.supervisor import backends
from hearthd.front.supervisor.launcher import ForkServerLauncher, Launcher
from hearthd.front.supervisor.supervisor import Supervisor
from hearthd.shared.device_spec import Backend
from hearthd.shared.host_memory import share_of_host


class DaemonParts:
    """The parts of one daemon. After construction none of them runs or listens yet."""

    def __init__(  # noqa: PLR0915 - the one place where the parts are made
        self, config: Config, backend: Backend, devices: list[int], launcher: Launcher | None, read: Read | None
    ) -> None:
        specs = backends.device_specs(config, backend, devices)
        self.collectives = CollectiveRouter([spec.ordinal for spec in specs], config.collectives.timeout)
        launcher = launcher or ForkServerLauncher(backend)
        self.supervisor = Supervisor(
            specs,
            launcher,
            isolation_policy(config, backend),
            self.collectives.on_frame,
            self._on_device_lost,
        )
        self.supervisor.device_ended = self.collectives.on_device_ended
        self.metrics = Metrics()
        if isinstance(launcher, ForkServerLauncher):
            fork_launcher = launcher
            self.metrics.forkserver_losses = lambda: fork_launcher.losses
        self.metrics.registry.register(CollectiveMetrics(self.collectives.coordinator))
        self.sessions = SessionTable(
            config.sessions.lease,
            config.sessions.max,
            on_close=self._on_session_close,
            on_closed=self.supervisor.release,
        )
        self.overload = OverloadManager(config.overload)
        self.metrics.registry.register(self.overload)
        self.sessions.overloaded = lambda: self.overload.description
        self.supervisor.sessions = self.sessions
        self.supervisor.on_quarantined = self._on_session_close
        self.supervisor.prepare.append(self.sessions.accounts.listen)
        targets = PeerTargets.of(config)
        traces = RecentTraces(self.sessions.accounts.session)
        self.supervisor.prepare.append(traces.watch)
        self.groups = PeerGroups(self.collectives, PeerConnector(targets))
        self.collectives.relay, self.collectives.send_to_peer = self.groups, self.groups.send
        self.supervisor.prepare.append(self.groups.watch)  # runs before channels to a process are opened
        self.durable_store = DurableStore(self.sessions, config.sessions.durable_bytes or share_of_host())
        self.supervisor.prepare.append(self.durable_store.restore)
        self.access = Access(config, self.sessions, self.metrics.authentication_failed)
        self.connections = ConnectionLimits(
            config.connections, self.metrics.registry, lambda: not self.access.auth.directory.open
        )
        self.metrics.certificate_expires = lambda: self.access.certificate_expires
        self.supervisor.prepare.append(self.access.watch)
        account = UnauthenticatedBytes(config.admission.max_unauthenticated_bytes, self.metrics.registry)
        self.gate = AdmissionGate(self.access.auth, AdmissionLimits.of(config), account)
        self.gate.on_credential = self.sessions.on_credential = self.connections.note_credential
        self.gate.on_probe, account.on_refused = self.connections.note_probe, self.connections.note_malformed
        self.gate.overloaded = self.overload.admit
        self.credits = TimeCredits(self.sessions)
        self.supervisor.prepare.append(self.credits.enter)
        limits = device_service.ClientLimits(
            max_inline_bytes=config.limits.max_inline_bytes,
            max_chunk_bytes=config.limits.max_chunk_bytes,
            max_code_bytes=config.limits.max_code_bytes,
            window=ExecuteWindow(
                max_batch_bytes=config.limits.max_batch_bytes,
                max_batches=config.limits.max_batches_in_flight,
                max_unacked_bytes=config.limits.max_unacked_bytes,
            ),
        )
        self.lanes = LanePort(self.metrics, self.connections.limiter("lanes"))
        self.stripes = StripePort(self.metrics, self.connections.limiter("stripes"))
        bulk_limits = BulkLimits(
            config.lanes.segment_bytes or 2 * share_of_host(),
            config.lanes.chunk_bytes,
            tls=bool(config.tls.certificate),
        )
        bulk = BulkService(self.sessions, self.supervisor, self.lanes, self.stripes, bulk_limits)
        self.device_service = device_service.DeviceService(
            self.sessions, self.supervisor, limits, self.metrics, self.lanes, bulk, self.gate
        )
        self.groups.port = self.access.peers(self.groups.admit)
        self.groups.port.on_refused = partial(self.connections.counts.connection_refused, "peers")
        group_service = GroupService(
            self.sessions,
            self.supervisor,
            self.groups,
            self.collectives.coordinator.recorder,
            config.collectives.timeout,
            self.access.fingerprint,
        )
        self.status = NodeStatus(
            self.supervisor,
            self.sessions,
            traces,
            self.device_service.publishing.registry,
            lambda: self.connections.budget,
        )
        self.node_service = node_service.NodeService(
            self.sessions,
            self.supervisor,
            limits,
            self.metrics,
            lambda: self.drain.begin(),  # noqa: PLW0108 - made below
            self.gate,
            group_service,
            self.status,
        )
        self.notifier = Notifier()
        self.listeners = Listeners(
            config,
            self.access,
            self.supervisor,
            self.sessions,
            self.metrics,
            self.lanes,
            self.stripes,
            self.status,
            self.gate,
            self.connections,
            self.overload,
        )
        self.drain = Drain(self.sessions, self.device_service, self.notifier, self.listeners.report_not_ready)
        changes = ConfigChanges(
            self.sessions,
            self.supervisor,
            self.access,
            self.listeners,
            targets,
            self.overload,
            backend,
            devices,
        )
        self.reloader = Reloader(config, read, changes.apply, self.access.audit, self.notifier)

    def _on_device_lost(self, link: DeviceLink, reason: str) -> None:
        self.access.device_lost(link, reason)
        self.collectives.on_device_lost(link, reason)

    def _on_session_close(self, session_id: str) -> None:
        self.collectives.on_session_closed(session_id)
        self.durable_store.on_session_closed(session_id)
