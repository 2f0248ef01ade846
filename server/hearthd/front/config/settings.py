"""The settings of the daemon, loaded by `hearthd.front.config.loader`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from hearth_proto.calls import socket_path
from hearthd.front.addresses import default_unix_path, identity_path, parse_address
from hearthd.front.config.audit import AuditSettings
from hearthd.front.config.collectives import CollectiveSettings, refuse_clear_tickets
from hearthd.front.config.front_limits import AdmissionSettings, ConnectionSettings, HealthSettings, OverloadSettings
from hearthd.front.config.http import HttpSettings
from hearthd.front.config.section import AbsolutePath, Bytes, ListenAddress, RequiredPath, Seconds, Section
from hearthd.front.config.tenants import TenantSettings, check_distinct
from hearthd.front.sockets import MAX_PATH


class ListenSettings(Section):
    """Addresses have the form `host:port` (port 0: any free port). An empty string disables a listener."""

    grpc: ListenAddress = "127.0.0.1:7421"
    """gRPC over TCP."""
    http: ListenAddress = "127.0.0.1:7422"
    """HTTP: `/healthz`, `/readyz`, `/metrics`, `/status` and the status page."""
    http_unix: AbsolutePath = ""
    """HTTP on a Unix socket, for users of this host: an absolute path; "auto": the path of `unix` with `-http`
    before its suffix (`/x/t-http.sock` for `/x/t.sock`).
    """
    lanes: ListenAddress = "127.0.0.1:7423"
    """TCP port for bulk data in stripes, directly to the device process."""
    unix: AbsolutePath = "auto"
    """gRPC on a Unix socket: an absolute path; "auto": `/run/hearth/hearth.sock` if that directory is writable,
    otherwise a path below `$XDG_RUNTIME_DIR` or `~/.cache`. Beside `/x/t.sock` are `/x/t.sock.call`, for calls without
    gRPC, `/x/t.sock.lane` (`lanes.path`), and `/x/t-identity.sock` if tenants have `users` or `groups`.
    """
    unix_access: Literal["auto", "owner", "all"] = "auto"
    """Users who may connect to `unix` and `http_unix`: "owner", the daemon's user; "all"; "auto": all if tenants have
    `users` or `groups`.
    """

    @field_validator("unix", "http_unix")
    @classmethod
    def _check_path(cls, value: str) -> str:
        if "\0" in value:
            raise ValueError(f"{value!r} contains a NUL character, which no path may contain")
        if len(os.fsencode(value)) > MAX_PATH:
            raise ValueError(f"a Unix socket's path has at most {MAX_PATH} bytes, this one {len(os.fsencode(value))}")
        return value


class DeviceSettings(Section):
    """The devices of this node, and their processes: start, restart, confinement, and sharing by tenants."""

    backend: Literal["auto", "cuda", "cpu"] = "auto"
    """"auto": CUDA if there are GPUs and CuPy, otherwise the CPU."""
    visible: Literal["all"] | tuple[int, ...] = "all"
    """"all", or CUDA device indices such as `[0, 2]`; clients count the visible devices from 0."""
    cpu_count: int = Field(default=2, ge=1, le=64)
    """Number of virtual devices of the CPU backend."""
    memory_limit: Bytes = Field(default=0, ge=0)
    """Maximum memory of all sessions on one device; 0: all memory of the device."""
    max_streams: int = Field(default=128, ge=1, le=1024)
    """CUDA streams of one device; further streams of clients share these."""
    persisting_l2: Bytes = Field(default=0, ge=0)
    """Part of a GPU's L2 cache for persisting accesses of launches, at most the device's limit; 0: none."""
    cpu_on_network: bool = False
    """True: other hosts may reach the CPU backend, whose kernels are native code."""
    cpu_tenants: Literal["confined", "trusted"] = "confined"
    """Kernels of tenants on the CPU backend: "confined" processes (Landlock and seccomp), or "trusted"."""
    gpu_confinement: Literal["off", "process"] = "process"
    """Confinement of GPU processes: seccomp, and protection from other processes; "off" for debuggers and
    profilers.
    """
    start_timeout: Seconds = Field(default=60.0, gt=0)
    """Time for a device process to start."""
    ping_timeout: Seconds = Field(default=10.0, gt=0)
    """A device process that does not answer for this time is killed."""
    linger: Seconds = Field(default=500e-6, ge=0)
    """Time for which a device process polls for the next request, after each request, before it sleeps; 0: none."""
    max_restarts: int = Field(default=5, ge=0)
    """Maximum number of losses of a device process within `restart_window`; after more, the sessions that it served
    have no process on that device until an operator restarts the device. Counted separately for the shared process,
    that of each tenant, and dedicated ones. Losses caused by one session count once, except in its dedicated process.
    If no process of the device serves, failed starts of all its processes count together, and the device is out of
    service.
    """
    restart_window: Seconds = Field(default=60.0, gt=0)
    """Period over which `max_restarts` and `max_faults` count."""
    max_faults: int = Field(default=5, ge=0)
    """Maximum number of losses that one session may cause within `restart_window`; after more, it must have a dedicated
    process.
    """
    isolation: Literal["tenant", "shared"] = "tenant"
    """"tenant": a device process for each tenant; "shared": one for all tenants."""
    idle_timeout: Seconds = Field(default=60.0, ge=0)
    """A process without sessions of its tenant ends after this time; 0: it never ends."""
    context_memory: Bytes = Field(default=640 << 20, ge=0)
    """Memory that a GPU process uses before any allocation; included in memory accounting."""
    max_processes: int = Field(default=8, ge=1, le=256)
    """Maximum number of processes for each device, including dedicated ones."""
    spare: bool = False
    """True: one more process for each device, ready for a new tenant or to replace a lost one."""

    @field_validator("visible", mode="before")
    @classmethod
    def _parse_list(cls, value: Any) -> Any:
        if isinstance(value, str) and value != "all":
            try:
                return tuple(int(part) for part in value.strip("[] ").split(",") if part.strip())
            except ValueError:
                raise ValueError('"all" or a list of device indices, e.g. [0, 2]') from None
        return value

    @field_validator("visible")
    @classmethod
    def _check_distinct(cls, value: Any) -> Any:
        if value != "all":
            if not value:
                raise ValueError("names no device; remove the setting or name one")
            if len(set(value)) != len(value) or min(value) < 0:
                raise ValueError("device indices are 0 or more, each once")
        return value


class SessionSettings(Section):
    """Limits of sessions, and the time (`lease`) for which a session is kept while its client is disconnected."""

    lease: Seconds = Field(default=30.0, gt=0)
    """Time for which a session is kept after its last connection has closed."""
    max: int = Field(default=1024, ge=1)
    """Maximum number of open sessions of all clients."""
    bind: bool = False
    """True: a session's token is valid only with the credential that opened the session."""
    durable_bytes: Bytes = Field(default=0, ge=0)
    """Host memory for all durable arrays; 0: a quarter of the host's memory."""


class LaneSettings(Section):
    """Connections that lead directly to the device process.

    Clients on this host use a Unix socket; `listen.lanes` is for bulk data.
    """

    enabled: bool = True
    """False: all clients use gRPC only."""
    path: RequiredPath = "auto"
    """Unix socket: an absolute path; "auto": the path of `listen.unix` with `.lane` appended."""
    chunk_bytes: Bytes = Field(default=4 << 20, ge=64 << 10, le=16 << 20)
    """Maximum size of one piece of bulk data over TCP."""
    segment_bytes: Bytes = Field(default=0, ge=0)
    """Memory that one device process shares with clients; 0: half of the host's memory."""


class LaunchSettings(Section):
    """Time limits of kernels, and of modules that wait for kernels."""

    timeout: Seconds = Field(default=0.0, ge=0)
    """A kernel that runs longer ends its device process; 0: no limit."""
    load_timeout: Seconds = Field(default=60.0, ge=0)
    """Maximum time that the load of a module waits for kernels of other sessions; 0: no limit."""


class CacheSettings(Section):
    """Cache of compiled modules on disk."""

    dir: str = "auto"
    """Directory; "auto": `$CACHE_DIRECTORY`, `$XDG_CACHE_HOME/hearth` or `~/.cache/hearth`; "": no cache."""
    max_bytes: Bytes = Field(default=1 << 30, ge=0)
    """Maximum size of all entries."""
    key: RequiredPath = "auto"
    """File with the key that authenticates entries: an absolute path; "auto": `key` in the directory."""
    shared: bool = False
    """True: tenants share compiled modules."""


class ProfileSettings(Section):
    """Profiling aids for device processes. They cost time for every command, and are off by default."""

    nvtx: bool = False
    """NVTX ranges around commands (package `nvtx`, or CuPy's)."""
    cupti: bool = False
    """CUPTI's kernel activity in traces (package `cupti-python`)."""


class CompileSettings(Section):
    """Limits of one compile. Compiles run in separate processes."""

    timeout: Seconds = Field(default=120.0, gt=0)
    """Maximum time."""
    memory: Bytes = Field(default=4 << 30, ge=256 << 20)
    """Address space beyond what the compiler needs to start."""
    workers: int = Field(default=2, ge=1, le=64)
    """Concurrent compiles for each device process; sessions without a running compile may start further ones, up to
    twice this number in total.
    """
    tenants: Literal["confined", "trusted"] = "confined"
    """Compiles of tenants: "confined" by Landlock, or "trusted"."""


class LogSettings(Section):
    """The daemon's own log."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe level that is logged."""
    format: Literal["json", "console", "auto"] = "auto"
    """"auto": console on a terminal, otherwise JSON."""


class LimitSettings(Section):
    """Maximum sizes of messages, and limits of each session. All except `max_handles` are announced to clients."""

    max_inline_bytes: Bytes = Field(default=1 << 20, ge=1 << 10, le=16 << 20)
    """Data of one write or read inside a batch of commands."""
    max_chunk_bytes: Bytes = Field(default=1 << 20, ge=1 << 12, le=16 << 20)
    """One message of a transfer stream."""
    max_batch_bytes: Bytes = Field(default=8 << 20, ge=1 << 12, le=31 << 20)
    """One batch of commands."""
    max_batches_in_flight: int = Field(default=64, ge=1, le=65536)
    """Batches that the daemon has not acknowledged."""
    max_unacked_bytes: Bytes = Field(default=32 << 20, ge=1 << 12)
    """Bytes of batches that the daemon has not acknowledged."""
    max_code_bytes: Bytes = Field(default=16 << 20, ge=1 << 10, le=31 << 20)
    """Code of one module."""
    max_handles: int = Field(default=131_072, ge=16, le=100_000_000)
    """Buffers, streams, events, modules and other objects of one session in a device process."""


class TlsSettings(Section):
    """TLS for gRPC over TCP, and for HTTP on addresses other than loopback. Unix sockets do not use TLS."""

    certificate: str = ""
    """PEM file: the daemon's certificate and the intermediate certificates; "": no TLS."""
    key: str = ""
    """PEM file of the certificate's key, readable by its owner only."""
    client_ca: str = ""
    """PEM file: authorities of client certificates, which clients must then present; "": none."""
    require_client_certificate: bool = False
    """True if and only if `client_ca` is set."""
    crl: str = ""
    """PEM or DER file: revoked certificates of the authorities in `client_ca`; "": none."""

    @model_validator(mode="after")
    def _check_complete(self) -> TlsSettings:
        if bool(self.certificate) != bool(self.key):
            raise ValueError(
                f"certificate and key belong together; {'key' if self.certificate else 'certificate'} is missing"
            )
        if self.client_ca and not self.certificate:
            raise ValueError("client_ca needs certificate and key: client certificates are sent over TLS")
        if self.crl and not self.client_ca:
            raise ValueError("crl needs client_ca: it lists revoked client certificates")
        if bool(self.client_ca) != self.require_client_certificate:
            # gRPC's Python server either requires a certificate of the client or does not ask for one.
            raise ValueError("client_ca and require_client_certificate = true belong together")
        return self


class AuthSettings(Section):
    """Authentication of callers; see `[[tenants]]`."""

    max_failures: int = Field(default=10, ge=1, le=10000)
    """Failures of one peer within a minute; further ones are answered with a delay and no longer logged."""
    failure_delay: Seconds = Field(default=1.0, ge=0, le=60)
    """That delay."""
    ticket_lifetime: Seconds = Field(default=10.0, gt=0, le=600)
    """Lifetime of the ticket that identifies a user of the Unix socket."""


class Config(Section):
    """The complete configuration of the daemon."""

    listen: ListenSettings = ListenSettings()
    """Addresses and Unix sockets."""
    devices: DeviceSettings = DeviceSettings()
    """Devices and their processes."""
    sessions: SessionSettings = SessionSettings()
    """Sessions of clients."""
    lanes: LaneSettings = LaneSettings()
    """Direct connections to device processes."""
    launch: LaunchSettings = LaunchSettings()
    """Time limits of kernels and modules."""
    collectives: CollectiveSettings = CollectiveSettings()
    """Collectives, and groups over several daemons."""
    compile: CompileSettings = CompileSettings()
    """Limits of one compile."""
    cache: CacheSettings = CacheSettings()
    """Cache of compiled modules."""
    profile: ProfileSettings = ProfileSettings()
    """Profiling aids."""
    log: LogSettings = LogSettings()
    """The daemon's log."""
    limits: LimitSettings = LimitSettings()
    """Limits of one session."""
    connections: ConnectionSettings = ConnectionSettings()
    """Limits on connections."""
    admission: AdmissionSettings = AdmissionSettings()
    """Limits on requests."""
    health: HealthSettings = HealthSettings()
    """Limits on health watchers."""
    overload: OverloadSettings = OverloadSettings()
    """Thresholds of overload."""
    tls: TlsSettings = TlsSettings()
    """Certificates."""
    auth: AuthSettings = AuthSettings()
    """Authentication of callers."""
    http: HttpSettings = HttpSettings()
    """The HTTP listener."""
    audit: AuditSettings = AuditSettings()
    """The audit log."""
    tenants: tuple[TenantSettings, ...] = ()
    """Tenants, each a table `[[tenants]]`; without tenants, every caller may do everything."""
    insecure: bool = False
    """True: listen on addresses that other hosts reach, without TLS or without tenants."""
    drain_timeout: Seconds = Field(default=10.0, ge=0)
    """Grace period for running sessions after SIGTERM."""

    @field_validator("tenants", mode="before")
    @classmethod
    def _check_tables(cls, value: Any) -> Any:
        if isinstance(value, str) or not isinstance(value, list | tuple):
            raise ValueError("tenants are tables of the file: write [[tenants]] and their settings below it")
        return value

    @model_validator(mode="after")
    def _check_identities(self) -> Config:
        check_distinct(self.tenants)
        for tenant in self.tenants:
            if tenant.certificates and not self.tls.client_ca:
                raise ValueError(
                    f"tenant {tenant.name!r} has certificates: set tls.client_ca and tls.require_client_certificate"
                )
            if (tenant.users or tenant.groups) and not self.listen.unix:
                raise ValueError(
                    f"tenant {tenant.name!r} has users or groups, which need the Unix socket: set listen.unix"
                )
        return self

    @model_validator(mode="after")
    def _check_sockets(self) -> Config:
        owners: dict[str, str] = {}
        for path, setting, use in self._sockets():
            if not path:
                continue
            owner = owners.setdefault(os.path.realpath(path), use)
            if owner != use:
                raise ValueError(f"{setting}: {path} is also the path of {owner}; set {setting} to another path")
        return self

    def _sockets(self) -> Iterator[tuple[str, str, str]]:
        """Yields the path of each Unix socket (empty: none), the setting that moves it, and a description of it."""
        unix = self.unix_path
        yield unix, "listen.unix", "listen.unix"
        if unix:
            yield socket_path(unix), "listen.unix", "the socket for calls, which follows from listen.unix"
            yield identity_path(unix), "listen.unix", "the identity socket, which follows from listen.unix"
        yield self.lane_path, "lanes.path", "lanes.path"
        yield self.http_path, "listen.http_unix", "listen.http_unix"

    @model_validator(mode="after")
    def _check_exposure(self) -> Config:
        for name, value in self.exposed_listeners():
            self._refuse_exposed(name, str(parse_address(value)))
        refuse_clear_tickets(self.collectives, tls=bool(self.tls.certificate), insecure=self.insecure)
        return self

    def exposed_listeners(self) -> Iterator[tuple[str, str]]:
        """Yields the names and addresses of the listeners that other hosts can reach."""
        for name in ("grpc", "http", "lanes"):
            value = getattr(self.listen, name)
            if value and not parse_address(value).loopback:
                yield name, value

    def _refuse_exposed(self, name: str, address: str) -> None:
        missing = [
            requirement
            for requirement, configured in (("TLS", self.tls.certificate), ("tenants", self.tenants))
            if not configured
        ]
        if missing and not self.insecure:
            raise ValueError(
                f"listen.{name} = {address!r} is reachable from other hosts, and every client may run "
                f"anything on the devices: that needs TLS ([tls] certificate, key) and authentication ([[tenants]]), "
                f"and there is no {' and no '.join(missing)}; set them, listen on 127.0.0.1, or set insecure = true on "
                "a network that only trusted users can reach"
            )
        if self.devices.backend == "cpu":
            refuse_cpu_exposed(self, name, address)

    @property
    def unix_path(self) -> str:
        """The path of the Unix socket. Empty: there is none."""
        return default_unix_path(os.environ) if self.listen.unix == "auto" else self.listen.unix

    @property
    def http_path(self) -> str:
        """The path of the Unix socket for HTTP. Empty: there is none."""
        if self.listen.http_unix != "auto":
            return self.listen.http_unix
        grpc_socket = Path(self.unix_path)
        return str(grpc_socket.with_name(f"{grpc_socket.stem}-http{grpc_socket.suffix}")) if self.unix_path else ""

    @property
    def lane_path(self) -> str:
        """The path of the Unix socket for lanes.

        Empty: there is none. Only clients of gRPC's Unix socket are offered a lane.
        """
        if not self.lanes.enabled or not self.unix_path:
            return ""
        return f"{self.unix_path}.lane" if self.lanes.path == "auto" else self.lanes.path

    @property
    def lane_address(self) -> str:
        """The TCP address for bulk data connections. Empty: there is none."""
        return self.listen.lanes if self.lanes.enabled else ""

    @property
    def cache_dir(self) -> str:
        """The directory of compiled modules. Empty: there is none."""
        if self.cache.dir != "auto":
            return self.cache.dir
        systemd = os.environ.get("CACHE_DIRECTORY", "").split(":")[0]
        if systemd:
            return systemd
        base = os.environ.get("XDG_CACHE_HOME") or str(Path("~/.cache").expanduser())
        return str(Path(base) / "hearth")

    @property
    def cache_key(self) -> str:
        """The file with the key of the cache. Empty: there is no cache."""
        if not self.cache_dir:
            return ""
        return str(Path(self.cache_dir) / "key") if self.cache.key == "auto" else self.cache.key


def refuse_cpu_exposed(config: Config, name: str, address: str) -> None:
    """Raises `ValueError` if the CPU backend would be exposed to other hosts and that is not explicitly allowed.

    Its kernels are native code in processes of the daemon's user, confined as far as the Linux kernel allows.
    """
    if not config.devices.cpu_on_network:
        raise ValueError(
            f"listen.{name} = {address!r} would serve the CPU backend to other hosts: its kernels are native code in "
            "processes of the daemon's user, confined only as far as the Linux kernel offers Landlock and seccomp; "
            "listen on 127.0.0.1, or set devices.cpu_on_network = true"
        )
