"""The settings of the daemon, loaded by `hearthd.front.config.loader`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from hearthd.front.addresses import Address, default_unix_path, parse_address
from hearthd.front.config.audit import AuditSettings
from hearthd.front.config.collectives import CollectiveSettings, refuse_clear_tickets
from hearthd.front.config.front_limits import AdmissionSettings, ConnectionSettings, HealthSettings, OverloadSettings
from hearthd.front.config.http import HttpSettings
from hearthd.front.config.section import Bytes, Seconds, Section
from hearthd.front.config.tenants import TenantSettings, check_distinct


class ListenSettings(Section):
    """Addresses have the form `host:port` (port 0: any free port). An empty string disables a listener."""

    grpc: str = "127.0.0.1:7421"
    http: str = "127.0.0.1:7422"
    http_unix: str = ""  # HTTP on a Unix socket, for users of this host; "auto": hearth-http.sock beside `unix`
    lanes: str = "127.0.0.1:7423"  # TCP port for bulk data in stripes
    unix: str = "auto"  # gRPC on a Unix socket; "auto": see `default_unix_path`
    # Users who may connect to `unix`; "auto": all if users are tenants.
    unix_access: Literal["auto", "owner", "all"] = "auto"

    @field_validator("grpc", "http", "lanes")
    @classmethod
    def _address(cls, value: str) -> str:
        if value:
            parse_address(value)
        return value

    @field_validator("unix", "http_unix")
    @classmethod
    def _path(cls, value: str) -> str:
        if value and value != "auto" and not Path(value).is_absolute():
            raise ValueError(f"{value!r} is not an absolute path")
        if len(os.fsencode(value)) > 107:
            raise ValueError(f"a Unix socket's path has at most 107 bytes, this one {len(os.fsencode(value))}")
        return value


class DeviceSettings(Section):
    """The devices of this node, and their processes: start, restart, confinement, and sharing by tenants."""

    backend: Literal["auto", "cuda", "cpu"] = "auto"
    visible: Literal["all"] | tuple[int, ...] = "all"
    cpu_count: int = Field(default=2, ge=1, le=64)
    memory_limit: Bytes = Field(default=0, ge=0)  # per device; 0: all memory of the device
    max_streams: int = Field(default=128, ge=1, le=1024)  # per device; further streams of clients share these
    cpu_on_network: bool = False
    # Kernels of tenants on the CPU backend: in confined processes, or trusted.
    cpu_tenants: Literal["confined", "trusted"] = "confined"
    # Confinement of GPU processes: seccomp, and protection from other processes.
    gpu_confinement: Literal["off", "process"] = "process"
    start_timeout: Seconds = Field(default=60.0, gt=0)
    ping_timeout: Seconds = Field(default=10.0, gt=0)
    linger: Seconds = Field(default=500e-6, ge=0)  # spin-wait time for the next request; 0: none
    max_restarts: int = Field(default=5, ge=0)
    restart_window: Seconds = Field(default=60.0, gt=0)
    max_faults: int = Field(default=5, ge=0)  # of one session within restart_window; beyond, it has to be dedicated
    isolation: Literal["tenant", "shared"] = "tenant"  # a process for each tenant, or one for all tenants
    idle_timeout: Seconds = Field(default=60.0, ge=0)  # of a process without sessions of its tenant; 0: it never ends
    # Memory that a GPU process uses before it allocates anything.
    context_memory: Bytes = Field(default=640 << 20, ge=0)
    max_processes: int = Field(default=8, ge=1, le=256)  # for each device
    spare: bool = False  # one more process for each device, ready for a new tenant or a loss

    @field_validator("visible", mode="before")
    @classmethod
    def _listed(cls, value: Any) -> Any:
        if isinstance(value, str) and value != "all":
            try:
                return tuple(int(part) for part in value.strip("[] ").split(",") if part.strip())
            except ValueError:
                raise ValueError('"all" or a list of device indices, e.g. [0, 2]') from None
        return value

    @field_validator("visible")
    @classmethod
    def _distinct(cls, value: Any) -> Any:
        if value != "all":
            if not value:
                raise ValueError("names no device; remove the setting or name one")
            if len(set(value)) != len(value) or min(value) < 0:
                raise ValueError("device indices are 0 or more, each once")
        return value


class SessionSettings(Section):
    """Limits of sessions, and the time (`lease`) for which a session is kept while its client is disconnected."""

    lease: Seconds = Field(default=30.0, gt=0)
    max: int = Field(default=1024, ge=1)
    bind: bool = False  # True: a session's token is valid only with the credential that opened the session
    durable_bytes: Bytes = Field(default=0, ge=0)  # host memory for all durable buffers; 0: a quarter of the host's


class LaneSettings(Section):
    """Connections that lead directly to the device process.

    Clients on this host use a Unix socket; `listen.lanes` is for bulk data.
    """

    enabled: bool = True
    path: str = "auto"  # Unix socket; "auto": the path of gRPC's with ".lane" appended
    # Maximum size of one piece of bulk data over TCP.
    chunk_bytes: Bytes = Field(default=4 << 20, ge=64 << 10, le=16 << 20)
    # Memory that one device process shares with clients; 0: half of the host's.
    segment_bytes: Bytes = Field(default=0, ge=0)

    @field_validator("path")
    @classmethod
    def _absolute(cls, value: str) -> str:
        if value != "auto" and not Path(value).is_absolute():
            raise ValueError(f'{value!r} is neither "auto" nor an absolute path')
        return value


class LaunchSettings(Section):
    """Time limits of kernels, and of modules that wait for kernels."""

    timeout: Seconds = Field(default=0.0, ge=0)  # 0: no limit
    load_timeout: Seconds = Field(default=60.0, ge=0)  # of a module that waits for other sessions' kernels; 0: no limit


class CacheSettings(Section):
    """Cache of compiled modules on disk."""

    dir: str = "auto"  # "auto": $CACHE_DIRECTORY, $XDG_CACHE_HOME/hearth or ~/.cache/hearth; "": no cache
    max_bytes: Bytes = Field(default=1 << 30, ge=0)
    key: str = "auto"  # file with the key that authenticates entries; "auto": `key` in the cache's directory
    shared: bool = False  # True: tenants share compiled modules

    @field_validator("key")
    @classmethod
    def _named(cls, value: str) -> str:
        if value != "auto" and not Path(value).is_absolute():
            raise ValueError(f'{value!r} is neither "auto" nor an absolute path')
        return value


class ProfileSettings(Section):
    """Profiling aids for device processes. They cost time for every command, and are off by default."""

    nvtx: bool = False  # NVTX ranges around commands (package `nvtx`, or CuPy's)
    cupti: bool = False  # CUPTI's kernel activity in traces (package `cupti-python`)


class CompileSettings(Section):
    """Limits of one compile. Compiles run in separate processes."""

    timeout: Seconds = Field(default=120.0, gt=0)
    memory: Bytes = Field(default=4 << 30, ge=256 << 20)  # address space beyond what the compiler needs to start
    # Concurrent workers for each device process, and one more for each further session.
    workers: int = Field(default=2, ge=1, le=64)
    tenants: Literal["confined", "trusted"] = "confined"  # compiles of tenants: confined by Landlock, or trusted


class LogSettings(Section):
    """The daemon's own log."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["json", "console", "auto"] = "auto"  # "auto": console on a terminal, else json


class LimitSettings(Section):
    """Maximum sizes of messages, and limits of each session. All of them but `max_handles` are announced to clients."""

    max_inline_bytes: Bytes = Field(default=1 << 20, ge=1 << 10, le=16 << 20)
    max_chunk_bytes: Bytes = Field(default=1 << 20, ge=1 << 12, le=16 << 20)
    max_batch_bytes: Bytes = Field(default=8 << 20, ge=1 << 12, le=31 << 20)
    max_batches_in_flight: int = Field(default=64, ge=1, le=65536)
    max_unacked_bytes: Bytes = Field(default=32 << 20, ge=1 << 12)
    max_code_bytes: Bytes = Field(default=16 << 20, ge=1 << 10, le=31 << 20)
    max_handles: int = Field(default=131_072, ge=16, le=100_000_000)  # of one session in a device process


class TlsSettings(Section):
    """TLS for gRPC over TCP, and for HTTP on addresses other than loopback. Unix sockets do not use TLS."""

    certificate: str = ""  # PEM: the daemon's certificate and the intermediate certificates; "": no TLS
    key: str = ""  # PEM; readable by its owner only
    client_ca: str = ""  # PEM: authorities whose certificates clients have to show
    require_client_certificate: bool = False
    crl: str = ""  # PEM or DER: revoked certificates of client_ca's authorities; "": none

    @model_validator(mode="after")
    def _complete(self) -> TlsSettings:
        if bool(self.certificate) != bool(self.key):
            raise ValueError(
                f"certificate and key belong together; {'key' if self.certificate else 'certificate'} is missing"
            )
        if self.client_ca and not self.certificate:
            raise ValueError("client_ca needs certificate and key: client certificates are sent over TLS")
        if self.crl and not self.client_ca:
            raise ValueError("crl needs client_ca: it lists certificates of clients that were revoked")
        if bool(self.client_ca) != self.require_client_certificate:
            # gRPC's Python server either requires a certificate of the client or does not ask for one.
            raise ValueError("client_ca and require_client_certificate = true belong together")
        return self


class AuthSettings(Section):
    """Authentication of callers; see `[[tenants]]`."""

    # Failures of one peer within a minute; further ones are answered with a delay.
    max_failures: int = Field(default=10, ge=1, le=10000)
    failure_delay: Seconds = Field(default=1.0, ge=0, le=60)
    # Lifetime of the ticket that identifies a user of the Unix socket.
    ticket_lifetime: Seconds = Field(default=10.0, gt=0, le=600)


class Config(Section):
    """The complete configuration of the daemon."""

    listen: ListenSettings = ListenSettings()
    devices: DeviceSettings = DeviceSettings()
    sessions: SessionSettings = SessionSettings()
    lanes: LaneSettings = LaneSettings()
    launch: LaunchSettings = LaunchSettings()
    collectives: CollectiveSettings = CollectiveSettings()
    compile: CompileSettings = CompileSettings()
    cache: CacheSettings = CacheSettings()
    profile: ProfileSettings = ProfileSettings()
    log: LogSettings = LogSettings()
    limits: LimitSettings = LimitSettings()
    connections: ConnectionSettings = ConnectionSettings()
    admission: AdmissionSettings = AdmissionSettings()
    health: HealthSettings = HealthSettings()
    overload: OverloadSettings = OverloadSettings()
    tls: TlsSettings = TlsSettings()
    auth: AuthSettings = AuthSettings()
    http: HttpSettings = HttpSettings()
    audit: AuditSettings = AuditSettings()
    tenants: tuple[TenantSettings, ...] = ()
    insecure: bool = False
    drain_timeout: Seconds = Field(default=10.0, ge=0)

    @field_validator("tenants", mode="before")
    @classmethod
    def _tables(cls, value: Any) -> Any:
        if isinstance(value, str) or not isinstance(value, list | tuple):
            raise ValueError("tenants are tables of the file: write [[tenants]] and their settings below it")
        return value

    @model_validator(mode="after")
    def _identities(self) -> Config:
        check_distinct(self.tenants)
        for tenant in self.tenants:
            if tenant.certificates and not self.tls.client_ca:
                raise ValueError(
                    f"tenant {tenant.name!r} has certificates: set tls.client_ca and tls.require_client_certificate"
                )
            if (tenant.users or tenant.groups) and not self.listen.unix:
                raise ValueError(
                    f"tenant {tenant.name!r} has users or groups, known on the Unix socket only: set listen.unix"
                )
        return self

    @model_validator(mode="after")
    def _exposure(self) -> Config:
        for name in ("grpc", "http", "lanes"):
            value = getattr(self.listen, name)
            address = parse_address(value) if value else None
            if address is not None and not address.loopback:
                self._refuse_exposed(name, address)
        refuse_clear_tickets(self.collectives, tls=bool(self.tls.certificate), insecure=self.insecure)
        return self

    def _refuse_exposed(self, name: str, address: Address) -> None:
        lacking = [what for what, there in (("TLS", self.tls.certificate), ("tenants", self.tenants)) if not there]
        if lacking and not self.insecure:
            raise ValueError(
                f"listen.{name} = {str(address)!r} is reachable from other hosts, and every client may run "
                f"anything on the devices: that needs TLS ([tls] certificate, key) and authentication ([[tenants]]), "
                f"and there is no {' and no '.join(lacking)}; set them, listen on 127.0.0.1, or set insecure = true on "
                "a network that only trusted users can reach"
            )
        if self.devices.backend == "cpu":
            refuse_cpu_exposed(self, name, str(address))

    @property
    def unix_path(self) -> str:
        """The path of the Unix socket. Empty: there is none."""
        return default_unix_path(os.environ) if self.listen.unix == "auto" else self.listen.unix

    @property
    def http_path(self) -> str:
        """The path of the Unix socket for HTTP. Empty: there is none."""
        if self.listen.http_unix != "auto":
            return self.listen.http_unix
        beside = Path(self.unix_path)
        return str(beside.with_name(f"{beside.stem}-http{beside.suffix}")) if self.unix_path else ""

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

    Its kernels are native code that can do everything the daemon can.
    """
    if not config.devices.cpu_on_network:
        raise ValueError(
            f"listen.{name} = {address!r} would serve the CPU backend to other hosts: its kernels are native code that "
            "can do anything the daemon's user can; listen on 127.0.0.1, or set devices.cpu_on_network = true"
        )
