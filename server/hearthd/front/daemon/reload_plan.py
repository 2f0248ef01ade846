"""The plan of a reload: the settings that change while the daemon runs. Pure: computed from two configurations.

`RELOADABLE` and `NEEDS_A_RESTART` together name every setting once, with the time at which a change takes effect, or
the reason why a change needs a restart.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from hearthd.front.config.settings import Config
from hearthd.front.config.tenants import TenantSettings

Path = tuple[str, ...]

RELOADABLE: dict[str, str] = {
    "tenants": "at once; sessions whose credential was removed, or now belongs to another tenant, end (see "
    "`config_changes`)",
    "drain_timeout": "for the next drain",
    "sessions.lease": "for sessions opened from then on",
    "sessions.max": "for sessions opened from then on",
    "sessions.bind": "at once",
    "launch.timeout": "for sessions that begin on a device from then on",
    "launch.load_timeout": "at once, for modules that wait already, too",
    "log.level": "at once",
    "log.format": "at once",
    "auth.max_failures": "at once",
    "auth.failure_delay": "at once",
    "auth.ticket_lifetime": "for tickets given out from then on",
    "http.hosts": "at once",
    "http.metrics_on_loopback": "at once",
    "collectives.peers": "for groups joined from then on",
    "devices.start_timeout": "for processes started from then on",
    "devices.max_restarts": "at the next loss",
    "devices.idle_timeout": "for processes that become idle from then on",
    "devices.max_processes": "for processes started from then on",
    **dict.fromkeys(
        ("overload.enabled", "overload.loop_lag", "overload.loop_lag_critical", "overload.memory",
         "overload.memory_critical", "overload.group_memory", "overload.group_memory_critical", "overload.descriptors",
         "overload.descriptors_critical"), "at once, also for the latest readings",
    ),
}  # fmt: skip
"""The time at which a change of each setting takes effect. The file of the audit log is opened again at every reload,
so that it can be renamed before."""

_AT_START = "it is created when the daemon starts"
_SENT_TO_CLIENTS = "clients received the value when they connected"
_AT_SPAWN = "device processes are started with it"

NEEDS_A_RESTART: dict[str, str] = {
    **dict.fromkeys(("listen.grpc", "listen.http", "listen.lanes"), _AT_START),
    **dict.fromkeys(("listen.unix", "listen.unix_access", "listen.http_unix"), _AT_START),
    **dict.fromkeys(("http.max_connections", "http.max_connections_per_address"), _AT_START),
    **dict.fromkeys(("http.header_timeout", "http.idle_timeout", "http.write_timeout"), _AT_START),
    "http.metrics_max_age": _AT_START,
    **dict.fromkeys(("lanes.enabled", "lanes.path", "lanes.segment_bytes"), _AT_START),
    **dict.fromkeys(("collectives.listen", "collectives.advertise", "collectives.timeout"), _AT_START),
    **dict.fromkeys(("tls.certificate", "tls.key", "tls.client_ca", "tls.require_client_certificate"), _AT_START),
    "tls.crl": "the daemon was started with its authorities; the file itself is read again when it changes",
    "audit.path": "the audit log's chain would be broken silently; the contents of the files of [tls] are reloaded "
    "automatically",
    **dict.fromkeys(("audit.key", "audit.anchor", "audit.anchor_interval"), "keys in the file are read again"),
    "insecure": "it decides which addresses the daemon may listen on",
    "devices.cpu_on_network": "it decides which addresses the daemon may listen on",
    **dict.fromkeys(("devices.backend", "devices.visible", "devices.cpu_count"), _AT_START),
    **dict.fromkeys(("devices.isolation", "devices.spare", "devices.ping_timeout"), _AT_START),
    **dict.fromkeys(("devices.restart_window", "devices.max_faults"), "the record of past losses depends on it"),
    **dict.fromkeys(("devices.memory_limit", "devices.context_memory", "devices.max_streams"), _AT_SPAWN),
    **dict.fromkeys(("devices.linger", "devices.persisting_l2"), _AT_SPAWN),
    **dict.fromkeys(
        ("admission.request_timeout", "admission.request_rate", "admission.max_request_bytes",
         "admission.max_request_fields", "admission.max_unauthenticated_bytes"), _AT_START,
    ),
    **dict.fromkeys(
        ("connections.max", "connections.max_strangers", "connections.max_strangers_per_address",
         "connections.handshake_timeout", "connections.stranger_bytes"), _AT_START,
    ),
    **dict.fromkeys(("compile.timeout", "compile.memory", "compile.workers", "compile.tenants"), _AT_SPAWN),
    **dict.fromkeys(("cache.dir", "cache.max_bytes", "cache.key", "cache.shared"), _AT_SPAWN),
    **dict.fromkeys(("devices.cpu_tenants", "devices.gpu_confinement", "profile.nvtx", "profile.cupti"), _AT_SPAWN),
    "limits.max_handles": _AT_SPAWN,
    "sessions.durable_bytes": "the durable buffers in memory may exceed the new limit",
    **dict.fromkeys(("health.watchers", "health.watchers_per_address"), _AT_START),
    "lanes.chunk_bytes": _SENT_TO_CLIENTS,
    **dict.fromkeys(
        ("limits.max_inline_bytes", "limits.max_chunk_bytes", "limits.max_batch_bytes", "limits.max_batches_in_flight",
         "limits.max_unacked_bytes", "limits.max_code_bytes"), _SENT_TO_CLIENTS,
    ),
}  # fmt: skip
"""The reason why a change of each setting needs a restart."""

FIRST_TENANT = "tenants (the first ones: until now every client is admitted, and clients share processes)"
LAST_TENANT = "tenants (none is left: every client would be admitted)"
FIRST_USER = "users and groups of tenants (the first ones: until now only the owner may use the Unix socket)"


class ReloadError(Exception):
    """The reloadable settings cannot be used without others that need a restart.

    The text is one line for the operator.
    """


@dataclass(frozen=True)
class ReloadPlan:
    """The result of comparing two configurations."""

    config: Config
    """The configuration in force after the reload."""
    changed: tuple[str, ...]
    """The settings that the reload changes."""
    deferred: tuple[str, ...]
    """The settings that keep their values until the next start, with the words of the log."""
    tenants: TenantChanges


@dataclass(frozen=True)
class TenantChanges:
    """The tenants that a reload adds, removes or changes, by name."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """The changed settings of each tenant that exists before and after."""

    def __str__(self) -> str:
        """Returns a summary like "+new -old research (tokens, quotas)"; empty: no changes."""
        parts = [f"+{name}" for name in self.added] + [f"-{name}" for name in self.removed]
        parts += [f"{name} ({', '.join(keys)})" for name, keys in self.changed.items()]
        return " ".join(parts)


def plan(running: Config, new: Config) -> ReloadPlan:
    """Returns the plan. Raises `ReloadError`."""
    differing = [path for path in paths() if value(running, path) != value(new, path)]
    changed = [path for path in differing if ".".join(path) in RELOADABLE]
    deferred = [".".join(path) for path in differing if path not in changed]
    if ("tenants",) in changed:
        if bool(running.tenants) != bool(new.tenants):
            changed.remove(("tenants",))
            deferred.append(FIRST_TENANT if new.tenants else LAST_TENANT)
        elif _has_users(new.tenants) and not _has_users(running.tenants):
            deferred.append(FIRST_USER)
    try:
        config = _merged(running, new, changed)
    except ValidationError as error:
        errors = "; ".join(item["msg"].removeprefix("Value error, ") for item in error.errors())
        raise ReloadError(f"{errors} (unchanged until a restart: {', '.join(deferred)})") from None
    return ReloadPlan(
        config,
        tuple(".".join(path) for path in changed),
        tuple(deferred),
        tenant_changes(running.tenants, config.tenants),
    )


def tenant_changes(before: tuple[TenantSettings, ...], after: tuple[TenantSettings, ...]) -> TenantChanges:
    """Returns the differences between the tenants of two configurations. A renamed tenant is removed and added."""
    old, new = ({tenant.name: tenant for tenant in tenants} for tenants in (before, after))
    changed = {
        name: tuple(key for key in TenantSettings.model_fields if getattr(old[name], key) != getattr(new[name], key))
        for name in old.keys() & new.keys()
        if old[name] != new[name]
    }
    return TenantChanges(
        tuple(name for name in new if name not in old), tuple(name for name in old if name not in new),
        {name: changed[name] for name in new if name in changed},
    )  # fmt: skip


def paths() -> Iterator[Path]:
    """Yields the path of every setting; `tenants` counts as one setting."""
    for name, info in Config.model_fields.items():
        section = info.annotation
        keys = getattr(section, "model_fields", None)
        if keys is None:
            yield (name,)
        else:
            yield from ((name, key) for key in keys)


def value(config: Config, path: Path) -> Any:
    """Returns the value of the setting with this path."""
    result: Any = config
    for key in path:
        result = getattr(result, key)
    return result


def _has_users(tenants: tuple[TenantSettings, ...]) -> bool:
    return any(tenant.users or tenant.groups for tenant in tenants)


def _merged(running: Config, new: Config, changed: list[Path]) -> Config:
    """Returns `running` with the settings `changed` of `new`, validated as a whole. Raises `ValidationError`."""
    values = running.model_dump()
    for path in changed:
        target = values
        for key in path[:-1]:
            target = target[key]
        target[path[-1]] = new.model_dump()[path[0]] if len(path) == 1 else value(new, path)
    return Config.model_validate(values)
