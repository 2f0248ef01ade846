"""Loads the configuration: TOML < `HEARTH_*` environment < flags. Each value has its origin; unknown keys are errors.

The environment names a setting by section and key, `HEARTH_DEVICES_BACKEND` or `HEARTH_INSECURE`; `HEARTH_CONFIG` names
the file. Variables of clients (`FOREIGN_VARIABLES`) are ignored. `[[tenants]]` can only be set in the file.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

# Without this, pydantic reads the entry points of every package to find plugins.
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")

from pydantic import BaseModel, ValidationError

from hearthd.front.config.settings import Config, refuse_cpu_exposed
from hearthd.front.config.tenant_quotas import HostCapacity, QuotaSettings
from hearthd.front.config.tenants import TenantSettings, TokenSettings, directory
from hearthd.front.tenancy.tenants import Directory
from hearthd.shared.host_memory import share_of_host

__all__ = ["Config", "ConfigError", "check_exposure", "load", "settings", "tenants"]

FOREIGN_VARIABLES = frozenset(
    {
        "HEARTH_TARGET",
        "HEARTH_TOKEN",
        "HEARTH_TOKEN_FILE",
        "HEARTH_CA",
        "HEARTH_CERTIFICATE",
        "HEARTH_KEY",
        "HEARTH_TRACE",
        "HEARTH_LAUNCH_BLOCKING",
        "HEARTH_DEBUG",
    }
)
"""Variables of clients, which have the same prefix."""
DEBUG_VARIABLES = frozenset({"HEARTH_CPU_RACECHECK", "HEARTH_DEBUGGABLE"})
"""Variables that processes read directly (docs/operations.md, "Finding races on a laptop", "What it protects")."""
FILE_VARIABLE = "HEARTH_CONFIG"
_PREFIX = "HEARTH_"


class ConfigError(Exception):
    """The configuration cannot be used. The text is one line for the person who wrote it."""


def check_exposure(config: Config, backend: str) -> None:
    """Raises `ConfigError` if the CPU backend was chosen at the start (`auto`) and is exposed to other hosts.

    A configured CPU backend is checked with the settings.
    """
    if backend != "cpu":
        return
    try:
        for name, value in config.exposed_listeners():
            refuse_cpu_exposed(config, name, value)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def tenants(config: Config) -> Directory:
    """Returns the directory of tenants on this host. Raises `ConfigError` for a user or group that does not exist."""
    try:
        host = share_of_host()
        return directory(config.tenants, HostCapacity(host, config.sessions.durable_bytes or host))
    except ValueError as error:
        raise ConfigError(str(error)) from None


def settings() -> Iterator[tuple[str, ...]]:
    """Yields the path of every setting."""
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
    """Returns the configuration, and the origin of each setting that is not a default. Raises `ConfigError`.

    `flags` maps paths such as ``("listen", "grpc")`` to values; None: the flag was not given.
    """
    environ = os.environ if environ is None else environ
    path = config_path(path, environ)
    values: dict[str, Any] = {}
    origins: dict[tuple[str, ...], str] = {}
    for source, layer in (
        _file_layer(path),
        ("the environment", _environment_layer(environ)),
        ("the command line", {key: value for key, value in (flags or {}).items() if value is not None}),
    ):
        for setting, value in layer.items():
            target = values
            for key in setting[:-1]:
                target = target.setdefault(key, {})
            target[setting[-1]] = value
            origins[setting] = _variable(setting) if source == "the environment" else source
    try:
        return Config.model_validate(values), origins
    except ValidationError as error:
        raise ConfigError(_explain(error, origins)) from None


REMOVED = {
    ("auth", "http_on_loopback"): "was removed: with tenants, HTTP requires a token also on loopback, because "
    "otherwise every user of this host could read the data of all tenants. Give Prometheus the token of a tenant with "
    'rights = ["observe"], or '
    "set metrics_on_loopback = true in [http], which applies to /metrics only",
}  # fmt: skip
"""Settings that were removed, and what to write instead."""


def config_path(path: str | Path | None = None, environ: Mapping[str, str] | None = None) -> Path | None:
    """Returns the file to read: `path`, otherwise the value of `HEARTH_CONFIG`. None: there is no file."""
    name = path or (os.environ if environ is None else environ).get(FILE_VARIABLE)
    return Path(name) if name else None


def _file_layer(path: str | Path | None) -> tuple[str, dict[tuple[str, ...], Any]]:
    if path is None:
        return "", {}
    try:
        with Path(path).open("rb") as file:
            table = tomllib.load(file)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: is not valid TOML: {error}") from None
    valid = set(settings())
    layer: dict[tuple[str, ...], Any] = {}
    for name, value in table.items():
        section = {setting[1]: setting for setting in valid if len(setting) == 2 and setting[0] == name}
        if section and isinstance(value, dict):
            for key, inner in value.items():
                if (name, key) in REMOVED:
                    raise ConfigError(f"{path}: {name}.{key} {REMOVED[name, key]}")
                if key not in section:
                    raise ConfigError(f"{path}: {name}.{key} is not a setting;{_nearest((name, key), valid)}")
                layer[section[key]] = inner
        elif section:
            raise ConfigError(f"{path}: {name} is a section: write [{name}]")
        elif (name,) in valid:
            layer[(name,)] = value
        else:
            raise ConfigError(f"{path}: {name} is not a setting;{_nearest((name,), valid)}")
    return str(path), layer


def _environment_layer(environ: Mapping[str, str]) -> dict[tuple[str, ...], str]:
    names = {_variable(setting): setting for setting in settings()}
    layer: dict[tuple[str, ...], str] = {}
    for name, value in environ.items():
        if not name.startswith(_PREFIX) or name in FOREIGN_VARIABLES | DEBUG_VARIABLES or name == FILE_VARIABLE:
            continue
        removed = {_variable(setting): text for setting, text in REMOVED.items()}
        if name in removed:
            raise ConfigError(f"environment: {name} {removed[name]}")
        if name not in names:
            raise ConfigError(f"environment: {name} is not a setting; the nearest is {_closest(name, names)}")
        layer[names[name]] = value
    return layer


def _variable(setting: tuple[str, ...]) -> str:
    return _PREFIX + "_".join(setting).upper()


def _nearest(setting: tuple[str, ...], valid: set[tuple[str, ...]]) -> str:
    """Returns the part of an error message that names the valid setting nearest to an unknown one.

    A setting with the same key is preferred, which finds the right section; otherwise the whole path is compared.
    """
    name = ".".join(setting)
    sections = {path[0] for path in valid}
    candidates = {".".join(path): ".".join(path) for path in valid} | {name: f"[{name}]" for name in sections}
    by_key = {path[-1]: ".".join(path) for path in sorted(valid)}
    if setting[-1] in by_key:
        return f" the nearest is {by_key[setting[-1]]}"
    return f" the nearest is {candidates[_closest(name, candidates)]}"


def _closest(name: str, names: Iterable[str]) -> str:
    """Returns the name in `names` that is most similar to `name`."""
    return difflib.get_close_matches(name, list(names), n=1, cutoff=0.0)[0]


def _explain(error: ValidationError, origins: Mapping[tuple[str, ...], str]) -> str:
    problems = []
    for item in error.errors():
        if item["loc"][:1] == ("tenants",) and len(item["loc"]) > 1:
            problems.append(_explain_tenant(cast(dict[str, Any], item), origins.get(("tenants",), "")))
            continue
        location = [str(part) for part in item["loc"]]
        setting = tuple(location[:2]) if tuple(location[:2]) in origins else tuple(location[:1])
        message = item["msg"].removeprefix("Value error, ")
        name = ".".join(location[:2]) if len(setting) == 2 else ".".join(setting)
        text = f"{name}: {message}" if name else message
        if item["type"] != "value_error" and location:
            text += f", not {item['input']!r}"
        origin = origins.get(setting, "")
        text = f"{origin}: {text}" if origin else text
        if text not in problems:
            problems.append(text)
    return "; ".join(problems)


def _explain_tenant(item: Mapping[str, Any], origin: str) -> str:
    """Explains an error in one of the tenants' tables.

    Values are not shown, because a value may be a misplaced token.
    """
    location = [part for part in item["loc"] if part not in ("str", "int", "float")]
    name = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location).removeprefix(".")
    message = item["msg"].removeprefix("Value error, ")
    if item["type"] == "extra_forbidden":
        table = str(location[2]) if len(location) > 3 else ""
        models: dict[str, type[BaseModel]] = {"tokens": TokenSettings, "quotas": QuotaSettings}
        valid = models.get(table, TenantSettings).model_fields
        message = f"is not a setting; the nearest is {_closest(str(location[-1]), valid)}"
        return f"{origin}: {name} {message}" if origin else f"{name} {message}"
    return f"{origin}: {name}: {message}" if origin else f"{name}: {message}"
