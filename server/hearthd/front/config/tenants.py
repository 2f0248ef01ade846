"""The `[[tenants]]` tables of the configuration: the users of the daemon."""

from __future__ import annotations

import contextlib
import datetime
import grp
import pwd
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from hearth_proto.rights import ORDINARY
from hearthd.front.config.section import Section
from hearthd.front.config.tenant_quotas import HostCapacity, QuotaSettings, resolve
from hearthd.front.tenancy import tokens
from hearthd.front.tenancy.tenants import Credential, Directory, Quotas, Right, Tenant

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_HASH = re.compile(r"sha256:[0-9a-f]{64}")
_NEVER = "never"


def _parse_expiry(value: Any) -> Any:
    """Returns the Unix time of a date or a time.

    A date is valid until the end of that day, UTC. A time is in UTC unless it has a time zone.
    """
    if isinstance(value, str) and value != _NEVER:
        with contextlib.suppress(ValueError):
            value = datetime.date.fromisoformat(value) if len(value) <= 10 else datetime.datetime.fromisoformat(value)
    if isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
        if value == datetime.date.max:  # there is no next day; this date means that there is no expiry
            return _NEVER
        day = datetime.datetime.combine(value, datetime.time(), datetime.UTC)
        return (day + datetime.timedelta(days=1)).timestamp()
    if isinstance(value, datetime.datetime):
        return (value if value.tzinfo else value.replace(tzinfo=datetime.UTC)).timestamp()
    if value == _NEVER or (isinstance(value, float) and 0 < value < float("inf")):
        return value
    raise ValueError(f"{value!r} is not a date; write e.g. 2027-06-30 or 2027-06-30T12:00:00Z")


class TokenSettings(Section):
    """A bearer token, given by its hash. The configuration never contains the token itself."""

    hash: str
    """"sha256:" and the token's hash in hexadecimal digits; `hearthd token` prints it."""
    name: str = Field(default="", max_length=64)
    """Name in the audit log; empty: the first digits of the hash."""
    expires: Annotated[float | Literal["never"], BeforeValidator(_parse_expiry)] = "never"
    """Last day (UTC), or time, at which the token is valid; "never"."""

    @field_validator("hash")
    @classmethod
    def _check_hash(cls, value: str) -> str:
        if tokens.is_placeholder(value):
            raise ValueError(
                "this is a placeholder of the sample configuration, not a token's hash; run `hearthd token` and "
                "put the entry that it prints in its place, or remove it"
            )
        if (word := tokens.weak_word(value)) is not None:
            raise ValueError(
                f"this is the hash of {word!r}, which is easy to guess; run `hearthd token` and put the entry that it "
                "prints in its place"
            )
        if _HASH.fullmatch(value) is None:
            # The value may be a token, by mistake, and must not be shown.
            raise ValueError(
                'a token is given by its hash, "sha256:" and 64 hexadecimal digits; `hearthd token` creates both'
            )
        return value

    def credential(self) -> Credential:
        """Returns the credential that callers' tokens are compared with. Its default name is the start of the hash."""
        name = self.name or self.hash[7:15]
        expires = float("inf") if self.expires == _NEVER else float(self.expires)
        return Credential(bytes.fromhex(self.hash[7:]), name, expires)


class TenantSettings(Section):
    """A tenant: its identities, its share of the devices, its rights and quotas. At least one identity is needed."""

    name: str
    """Name in logs, metrics and the status page."""
    tokens: tuple[TokenSettings, ...] = ()
    """Bearer tokens, each a hash or a table."""
    certificates: tuple[str, ...] = ()
    """Subject alternative names of client certificates; the common name of a certificate without such names."""
    users: tuple[str | int, ...] = ()
    """Names or numbers of users on the Unix socket."""
    groups: tuple[str | int, ...] = ()
    """Names or numbers of groups on the Unix socket."""
    weight: float = Field(default=1.0, gt=0, le=1000)
    """Share of a device's time, relative to the weights of other tenants."""
    priority: int = Field(default=0, ge=-10, le=10)
    """Lower numbers run first."""
    devices: Literal["all"] | tuple[int, ...] = "all"
    """"all", or ordinals as clients count them; the tenant does not see other devices."""
    rights: tuple[Right, ...] = tuple(right for right in Right if right in ORDINARY)
    """Permitted operations; `"observe"` and `"admin"` are not among the default rights."""
    quotas: QuotaSettings = QuotaSettings()
    """Limits, the table `[tenants.quotas]`."""

    @field_validator("name")
    @classmethod
    def _check_name(cls, value: str) -> str:
        if _NAME.fullmatch(value) is None:
            raise ValueError(f"{value!r} is not a valid name; use letters, digits, '.', '_' and '-', 63 at most")
        return value

    @field_validator("tokens", mode="before")
    @classmethod
    def _expand_hashes(cls, value: Any) -> Any:
        """Converts a plain hash to a token without name and expiry."""
        if isinstance(value, list | tuple):
            return [{"hash": item} if isinstance(item, str) else item for item in value]
        return value

    @field_validator("users", "groups", mode="before")
    @classmethod
    def _check_members(cls, value: Any) -> Any:
        for item in value if isinstance(value, list | tuple) else (None,):
            is_name = isinstance(item, str) and item
            if not is_name and (isinstance(item, bool) or not isinstance(item, int) or item < 0):
                raise ValueError('a list of names and numbers, e.g. ["alice", 1000]')
        return value

    @field_validator("devices", mode="before")
    @classmethod
    def _check_devices(cls, value: Any) -> Any:
        ordinals = value if isinstance(value, list | tuple) else []
        has_invalid = any(isinstance(item, bool) or not isinstance(item, int) or item < 0 for item in ordinals)
        if value != "all" and (not ordinals or has_invalid or len(set(ordinals)) != len(ordinals)):
            raise ValueError('"all" or a list of ordinals as clients count them, from 0, each once')
        return value

    @field_validator("rights", mode="before")
    @classmethod
    def _expand_all(cls, value: Any) -> Any:
        return tuple(Right) if value == "all" else value

    @model_validator(mode="after")
    def _check_identities(self) -> TenantSettings:
        if not (self.tokens or self.certificates or self.users or self.groups):
            raise ValueError(f"no caller can be tenant {self.name!r}: give it tokens, certificates, users or groups")
        return self

    def tenant(self, capacity: HostCapacity) -> Tenant:
        """Returns the tenant that the daemon uses.

        `capacity`: the capacities that are divided among tenants whose quotas are not set.
        """
        return Tenant(
            name=self.name,
            weight=self.weight,
            priority=self.priority,
            devices=None if self.devices == "all" else frozenset(self.devices),
            rights=frozenset(self.rights),
            quotas=Quotas(**resolve(self.quotas, capacity)),
        )


def check_distinct(tenants: Iterable[TenantSettings]) -> None:
    """Raises `ValueError` if two tenants have the same name, or share an identity."""
    owners: dict[tuple[str, object], str] = {}
    for tenant in tenants:
        claims: list[tuple[str, object]] = [("name", tenant.name)]
        claims += [("token", token.hash) for token in tenant.tokens]
        claims += [("certificate", name) for name in tenant.certificates]
        claims += [("user", user) for user in tenant.users] + [("group", group) for group in tenant.groups]
        for claim in claims:
            if claim in owners:
                description = f"{claim[0]} {str(claim[1])[:15]!r}"
                problem = "is given twice" if claim[0] == "name" else f"belongs to {owners[claim]!r} as well"
                raise ValueError(f"tenant {tenant.name!r}: {description} {problem}")
            owners[claim] = tenant.name


def directory(tenants: Iterable[TenantSettings], capacity: HostCapacity | None = None) -> Directory:
    """Returns the directory of these tenants, with the names of users and groups looked up on this host.

    Raises `ValueError` for a name that the host does not have.
    """
    tenants = list(tenants)
    capacity = replace(capacity or HostCapacity(), several=len(tenants) > 1)
    created: list[Tenant] = []
    tokens: dict[Credential, Tenant] = {}
    certificates: dict[str, Tenant] = {}
    users: dict[int, Tenant] = {}
    groups: dict[int, Tenant] = {}
    for settings in tenants:
        tenant = settings.tenant(capacity)
        created.append(tenant)
        tokens.update((token.credential(), tenant) for token in settings.tokens)
        certificates.update((name, tenant) for name in settings.certificates)
        for kind, names, members, look_up in (
            ("user", settings.users, users, lambda name: pwd.getpwnam(name).pw_uid),
            ("group", settings.groups, groups, lambda name: grp.getgrnam(name).gr_gid),
        ):
            for name in names:
                number = _number(kind, name, tenant.name, look_up)
                if members.setdefault(number, tenant) is not tenant:
                    raise ValueError(
                        f"tenant {tenant.name!r}: {kind} {name!r} belongs to {members[number].name!r} as well"
                    )
    return Directory(created, tokens, certificates, users, groups)


def _number(kind: str, name: str | int, tenant: str, look_up: Callable[[str], int]) -> int:
    if isinstance(name, int):
        return name
    try:
        return look_up(name)
    except KeyError:
        raise ValueError(f"tenant {tenant!r}: this host has no {kind} {name!r}") from None
