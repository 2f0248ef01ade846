"""The settings of the daemon, as `hearthd.config` reads them and everything else uses them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from hearthd.front.addresses import Address, default_unix_path, parse_address
from hearthd.front.units import parse_bytes, parse_seconds

Seconds = Annotated[float, BeforeValidator(parse_seconds)]
Bytes = Annotated[int, BeforeValidator(parse_bytes)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


class Listen(_Section):
    """Addresses are `host:port` (port 0: any free one); an empty string switches a listener off."""

    grpc: str = "127.0.0.1:7421"
    http: str = "127.0.0.1:7422"
    lanes: str = ""  # TCP lanes; not served yet
    unix: str = "auto"  # gRPC on a Unix socket; "auto": see `default_unix_path`

    @field_validator("grpc", "http", "lanes")
    @classmethod
    def _address(cls, value: str) -> str:
        if value:
            parse_address(value)
        return value

    @field_validator("unix")
    @classmethod
    def _path(cls, value: str) -> str:
        if value and value != "auto" and not Path(value).is_absolute():
            raise ValueError(f"{value!r} is no absolute path")
        if len(os.fsencode(value)) > 107:
            raise ValueError(f"a Unix socket's path has at most 107 bytes, this one {len(os.fsencode(value))}")
        return value


class Devices(_Section):
    backend: Literal["auto", "cuda", "cpu"] = "auto"
    visible: Literal["all"] | tuple[int, ...] = "all"
    cpu_count: int = Field(default=2, ge=1, le=64)
    memory_limit: Bytes = Field(default=0, ge=0)  # per device; 0: what the device has
    max_streams: int = Field(default=128, ge=1, le=1024)  # per device; further streams of clients share these
    cpu_on_network: bool = False
    start_timeout: Seconds = Field(default=60.0, gt=0)
    ping_timeout: Seconds = Field(default=10.0, gt=0)
    max_restarts: int = Field(default=5, ge=0)
    restart_window: Seconds = Field(default=60.0, gt=0)

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
                raise ValueError("no device at all; leave it out or name one")
            if len(set(value)) != len(value) or min(value) < 0:
                raise ValueError("device indices are 0 or more, each once")
        return value


class Sessions(_Section):
    lease: Seconds = Field(default=30.0, gt=0)
    max: int = Field(default=1024, ge=1)


class Launch(_Section):
    timeout: Seconds = Field(default=0.0, ge=0)  # 0: none


class Collectives(_Section):
    timeout: Seconds = Field(default=30.0, gt=0)


class Cache(_Section):
    """Compiled modules on disk."""

    dir: str = "auto"  # "auto": $CACHE_DIRECTORY, $XDG_CACHE_HOME/hearth or ~/.cache/hearth; "": no cache
    max_bytes: Bytes = Field(default=1 << 30, ge=0)


class Profile(_Section):
    """What costs time at every command, and so is off: for a device process under a profiler's eyes."""

    nvtx: bool = False  # NVTX ranges around commands (package `nvtx`, or CuPy's)
    cupti: bool = False  # CUPTI's kernel activity in traces (package `cupti-python`)


class Compile(_Section):
    """What one compile may take; a device process compiles in processes of their own."""

    timeout: Seconds = Field(default=120.0, gt=0)
    memory: Bytes = Field(default=4 << 30, ge=256 << 20)  # address space, beyond what the compiler takes to start
    workers: int = Field(default=2, ge=1, le=64)  # at once, for each device; one more for each further session


class Log(_Section):
    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["json", "console", "auto"] = "auto"  # "auto": console on a terminal, else json


class Limits(_Section):
    max_inline_bytes: Bytes = Field(default=1 << 20, ge=1 << 10, le=16 << 20)
    max_chunk_bytes: Bytes = Field(default=1 << 20, ge=1 << 12, le=16 << 20)
    max_batch_bytes: Bytes = Field(default=8 << 20, ge=1 << 12, le=31 << 20)
    max_batches_in_flight: int = Field(default=64, ge=1, le=65536)
    max_unacked_bytes: Bytes = Field(default=32 << 20, ge=1 << 12)
    max_code_bytes: Bytes = Field(default=16 << 20, ge=1 << 10, le=31 << 20)


class Config(_Section):
    """The daemon's whole configuration."""

    listen: Listen = Listen()
    devices: Devices = Devices()
    sessions: Sessions = Sessions()
    launch: Launch = Launch()
    collectives: Collectives = Collectives()
    compile: Compile = Compile()
    cache: Cache = Cache()
    profile: Profile = Profile()
    log: Log = Log()
    limits: Limits = Limits()
    insecure: bool = False
    drain_timeout: Seconds = Field(default=10.0, ge=0)

    @model_validator(mode="after")
    def _exposure(self) -> Config:
        for name in ("grpc", "http", "lanes"):
            value = getattr(self.listen, name)
            address = parse_address(value) if value else None
            if address is not None and not address.loopback:
                self._refuse_exposed(name, address)
        return self

    def _refuse_exposed(self, name: str, address: Address) -> None:
        if not self.insecure:
            raise ValueError(
                f"listen.{name} = {str(address)!r} is reachable from other hosts, and whoever reaches it may run "
                "anything on the devices: there is no authentication yet; listen on 127.0.0.1, or set insecure = true "
                "on a network that only trusted people reach"
            )
        if self.devices.backend == "cpu":
            refuse_cpu_exposed(self, name, str(address))

    @property
    def unix_path(self) -> str:
        """The Unix socket's path; empty: none."""
        return default_unix_path(os.environ) if self.listen.unix == "auto" else self.listen.unix

    @property
    def cache_dir(self) -> str:
        """Where compiled modules are kept; empty: nowhere."""
        if self.cache.dir != "auto":
            return self.cache.dir
        systemd = os.environ.get("CACHE_DIRECTORY", "").split(":")[0]
        if systemd:
            return systemd
        base = os.environ.get("XDG_CACHE_HOME") or str(Path("~/.cache").expanduser())
        return str(Path(base) / "hearth")


def refuse_cpu_exposed(config: Config, name: str, address: str) -> None:
    """Kernels of the CPU backend are native code that can do anything the daemon can; raises unless that is wanted."""
    if not config.devices.cpu_on_network:
        raise ValueError(
            f"listen.{name} = {address!r} would serve the CPU backend to other hosts: its kernels are native code that "
            "can do anything the daemon's user can; listen on 127.0.0.1, or set devices.cpu_on_network = true"
        )
