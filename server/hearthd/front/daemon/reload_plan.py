"""The plan of a reload: the settings that change while the daemon runs. Pure: computed from two configurations.

Every setting that `RELOADABLE` does not name needs a restart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from hearthd.front.config.loader import settings
from hearthd.front.config.settings import Config
from hearthd.front.config.tenants import TenantSettings

Path = tuple[str, ...]

RELOADABLE: dict[str, str] = {
    "tenants": "immediately; sessions whose credential was removed, or now belongs to another tenant, end (see "
    "`config_changes`)",
    "drain_timeout": "for the next drain",
    "sessions.lease": "for sessions opened from then on",
    "sessions.max": "for sessions opened from then on",
    "sessions.bind": "immediately",
    "launch.timeout": "for sessions that begin on a device from then on",
    "launch.load_timeout": "immediately, for modules that wait already, too",
    "log.level": "immediately",
    "log.format": "immediately",
    "auth.max_failures": "immediately",
    "auth.failure_delay": "immediately",
    "auth.ticket_lifetime": "for tickets given out from then on",
    "http.hosts": "immediately",
    "http.metrics_on_loopback": "immediately",
    "collectives.peers": "for groups joined from then on",
    "devices.start_timeout": "for processes started from then on",
    "devices.max_restarts": "at the next loss",
    "devices.idle_timeout": "for processes that become idle from then on",
    "devices.max_processes": "for processes started from then on",
    **dict.fromkeys(
        ("overload.enabled", "overload.loop_lag", "overload.loop_lag_critical", "overload.memory",
         "overload.memory_critical", "overload.group_memory", "overload.group_memory_critical", "overload.descriptors",
         "overload.descriptors_critical"), "immediately, also for the latest readings",
    ),
}  # fmt: skip
"""The time at which a change of each setting takes effect. The file of the audit log is opened again at every reload,
so that it can be renamed before.

All other settings need a restart, for these reasons:

- Listeners, the limits of the front and the devices are created when the daemon starts.
- Device processes are started with their settings: memory, streams, caches, compiles, confinement, profiling.
- Clients received `limits` and the size of chunks when they connected.
- `insecure` and `devices.cpu_on_network` decide which addresses the daemon may listen on.
- The record of past losses depends on `devices.restart_window` and `devices.max_faults`.
- The durable buffers in memory may exceed another `sessions.durable_bytes`.
- A change of `audit.path` would break the audit log's chain silently. The contents of the files of `[tls]`, of the
  revocation list and of the audit log's keys are read again without a reload of these settings.
"""

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
    tenants: str
    """The tenants that the reload adds, removes or changes; see `tenant_changes`."""


def plan(running: Config, new: Config) -> ReloadPlan:
    """Returns the plan. Raises `ReloadError`."""
    differing = [path for path in settings() if value(running, path) != value(new, path)]
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


def tenant_changes(before: tuple[TenantSettings, ...], after: tuple[TenantSettings, ...]) -> str:
    """Returns a summary like "+new -old research (tokens, quotas)"; empty: no changes.

    A renamed tenant is removed and added.
    """
    old, new = ({tenant.name: tenant for tenant in tenants} for tenants in (before, after))
    parts = [f"+{name}" for name in new if name not in old] + [f"-{name}" for name in old if name not in new]
    for name, tenant in new.items():
        if name in old and old[name] != tenant:
            keys = (key for key in TenantSettings.model_fields if getattr(old[name], key) != getattr(tenant, key))
            parts.append(f"{name} ({', '.join(keys)})")
    return " ".join(parts)


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
