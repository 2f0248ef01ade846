"""Configuration: TOML < `HEARTH_*` environment < flags, each value with its origin; unknown keys are errors.

The environment names a setting by section and key, `HEARTH_DEVICES_BACKEND` or `HEARTH_INSECURE`; `HEARTH_CONFIG` names
the file. `HEARTH_TARGET` belongs to clients and is left alone.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator, model_validator

from hearthd.front.addresses import Address, default_unix_path, parse_address
from hearthd.front.units import parse_bytes, parse_seconds

FOREIGN_VARIABLES = frozenset({"HEARTH_TARGET"})
"""Variables of the clients, which share the prefix."""
FILE_VARIABLE = "HEARTH_CONFIG"
_PREFIX = "HEARTH_"


class ConfigError(Exception):
    """The configuration cannot be used; the text is one line for the person who wrote it."""


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
    cpu_count: int = Field(2, ge=1, le=64)
    memory_limit: Bytes = Field(0, ge=0)  # per device; 0: what the device has
    cpu_on_network: bool = False
    start_timeout: Seconds = Field(60.0, gt=0)
    ping_timeout: Seconds = Field(10.0, gt=0)
    max_restarts: int = Field(5, ge=0)
    restart_window: Seconds = Field(60.0, gt=0)

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
    lease: Seconds = Field(30.0, gt=0)
    max: int = Field(1024, ge=1)


class Launch(_Section):
    timeout: Seconds = Field(0.0, ge=0)  # 0: none


class Collectives(_Section):
    timeout: Seconds = Field(30.0, gt=0)


class Cache(_Section):
    """Compiled modules on disk."""

    dir: str = "auto"  # "auto": $CACHE_DIRECTORY, $XDG_CACHE_HOME/hearth or ~/.cache/hearth; "": no cache
    max_bytes: Bytes = Field(1 << 30, ge=0)


class Log(_Section):
    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["json", "console", "auto"] = "auto"  # "auto": console on a terminal, else json


class Limits(_Section):
    max_inline_bytes: Bytes = Field(1 << 20, ge=1 << 10, le=16 << 20)
    max_chunk_bytes: Bytes = Field(1 << 20, ge=1 << 12, le=16 << 20)
    max_batch_bytes: Bytes = Field(8 << 20, ge=1 << 12, le=31 << 20)
    max_batches_in_flight: int = Field(64, ge=1, le=65536)
    max_unacked_bytes: Bytes = Field(32 << 20, ge=1 << 12)
    max_code_bytes: Bytes = Field(16 << 20, ge=1 << 10, le=31 << 20)


class Config(_Section):
    """The daemon's whole configuration."""

    listen: Listen = Listen()
    devices: Devices = Devices()
    sessions: Sessions = Sessions()
    launch: Launch = Launch()
    collectives: Collectives = Collectives()
    cache: Cache = Cache()
    log: Log = Log()
    limits: Limits = Limits()
    insecure: bool = False
    drain_timeout: Seconds = Field(10.0, ge=0)

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


def check_exposure(config: Config, backend: str) -> None:
    """The same rule for a backend that was found at start (`auto`). Raises `ConfigError`."""
    if backend != "cpu":
        return
    for name in ("grpc", "http", "lanes"):
        value = getattr(config.listen, name)
        if value and not parse_address(value).loopback:
            try:
                refuse_cpu_exposed(config, name, value)
            except ValueError as error:
                raise ConfigError(str(error)) from None


def settings() -> Iterator[tuple[str, ...]]:
    """The path of every setting."""
    for name, field in Config.model_fields.items():
        section = field.annotation
        if isinstance(section, type) and issubclass(section, BaseModel):
            for key in section.model_fields:
                yield name, key
        else:
            yield (name,)


def load(
    path: str | Path | None = None,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[tuple[str, ...], Any] | None = None,
) -> tuple[Config, dict[tuple[str, ...], str]]:
    """The configuration, and where each setting that is not a default comes from. Raises `ConfigError`.

    `flags` maps paths such as ``("listen", "grpc")`` to values; None stands for a flag that was not given.
    """
    environ = os.environ if environ is None else environ
    path = path or environ.get(FILE_VARIABLE) or None
    values: dict[str, Any] = {}
    origins: dict[tuple[str, ...], str] = {}
    for source, layer in (
        _file_layer(path),
        ("the environment", _environment_layer(environ)),
        ("the command line", {key: value for key, value in (flags or {}).items() if value is not None}),
    ):
        for where, value in layer.items():
            target = values
            for part in where[:-1]:
                target = target.setdefault(part, {})
            target[where[-1]] = value
            origins[where] = _variable(where) if source == "the environment" else source
    try:
        return Config.model_validate(values), origins
    except ValidationError as error:
        raise ConfigError(_explain(error, origins)) from None


def _file_layer(path: str | Path | None) -> tuple[str, dict[tuple[str, ...], Any]]:
    if path is None:
        return "", {}
    try:
        with Path(path).open("rb") as file:
            table = tomllib.load(file)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: is no TOML: {error}") from None
    known = set(settings())
    layer: dict[tuple[str, ...], Any] = {}
    for name, value in table.items():
        section = {where[1]: where for where in known if len(where) == 2 and where[0] == name}
        if section and isinstance(value, dict):
            for key, inner in value.items():
                if key not in section:
                    raise ConfigError(f"{path}: {name}.{key} is no setting;{_nearest((name, key), known)}")
                layer[section[key]] = inner
        elif section:
            raise ConfigError(f"{path}: {name} is a section: write [{name}]")
        elif (name,) in known:
            layer[(name,)] = value
        else:
            raise ConfigError(f"{path}: {name} is no setting;{_nearest((name,), known)}")
    return str(path), layer


def _environment_layer(environ: Mapping[str, str]) -> dict[tuple[str, ...], str]:
    names = {_variable(where): where for where in settings()}
    layer: dict[tuple[str, ...], str] = {}
    for name, value in environ.items():
        if not name.startswith(_PREFIX) or name in FOREIGN_VARIABLES or name == FILE_VARIABLE:
            continue
        if name not in names:
            close = difflib.get_close_matches(name, names, n=1, cutoff=0.0)
            raise ConfigError(f"environment: {name} is no setting; the nearest is {close[0]}")
        layer[names[name]] = value
    return layer


def _variable(where: tuple[str, ...]) -> str:
    return _PREFIX + "_".join(where).upper()


def _nearest(where: tuple[str, ...], known: set[tuple[str, ...]]) -> str:
    """The valid name nearest to a wrong one: by the whole path, or by the key alone, which finds a wrong section."""
    wrong = ".".join(where)
    sections = {path[0] for path in known}
    candidates = {".".join(path): ".".join(path) for path in known} | {name: f"[{name}]" for name in sections}
    by_key = {path[-1]: ".".join(path) for path in sorted(known)}
    if where[-1] in by_key:
        return f" the nearest is {by_key[where[-1]]}"
    close = difflib.get_close_matches(wrong, candidates, n=1, cutoff=0.0)
    return f" the nearest is {candidates[close[0]]}" if close else ""


def _explain(error: ValidationError, origins: Mapping[tuple[str, ...], str]) -> str:
    problems = []
    for item in error.errors():
        location = [str(part) for part in item["loc"]]
        where = tuple(location[:2]) if tuple(location[:2]) in origins else tuple(location[:1])
        message = item["msg"].removeprefix("Value error, ")
        name = ".".join(location[:2]) if len(where) == 2 else ".".join(where)
        text = f"{name}: {message}" if name else message
        if item["type"] != "value_error" and location:
            text += f", not {item['input']!r}"
        origin = origins.get(where, "")
        text = f"{origin}: {text}" if origin else text
        if text not in problems:
            problems.append(text)
    return "; ".join(problems)
