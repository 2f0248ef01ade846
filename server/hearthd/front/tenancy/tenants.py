"""Tenants of this node: identities, rights and quotas. Pure: maps identities to tenants or refusals."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from hearth_proto import rights
from hearth_proto.reasons import Reason, Refusal
from hearth_proto.rights import EVERYTHING, Right
from hearthd.front.tenancy import tokens
from hearthd.front.tenancy.revocations import CertificateIdentity

__all__ = [
    "ALL", "ANONYMOUS", "EVERYONE", "EVERYTHING", "Caller", "Credential", "Directory", "NamedSession", "Quotas",
    "Right", "Tenant", "User", "sees_tenant", "token_key",
]  # fmt: skip

ALL: frozenset[int] | None = None
"""The value of `Tenant.devices` that means all devices."""


@dataclass(frozen=True)
class Quotas:
    """Limits of one tenant. 0: no limit. Limits on memory bytes apply to each device separately."""

    device_bytes: int = 0
    device_share: float = 0.0
    """The fraction of each device's memory that the tenant may hold, if `device_bytes` is 0."""
    pinned_bytes: int = 0
    durable_bytes: int = 0
    sessions: int = 0
    handles: int = 0
    """Maximum number of handles in one device process, of all kinds and sessions together."""
    published: int = 0
    """Maximum number of published names on each device."""
    queued_commands: int = 0
    queued_bytes: int = 0
    gpu_seconds: float = 0.0
    """Device time on all devices together since the daemon started, in seconds."""

    def on_device(self, total: int) -> int:
        """Returns the bytes that the tenant may hold of a device that has `total` bytes. 0: no limit."""
        return self.device_bytes or int(self.device_share * total)


@dataclass(frozen=True)
class Tenant:
    """A user or group of users whose sessions share rights, quotas and device processes."""

    name: str
    weight: float = 1.0
    """Weight of the tenant in the division of device time, relative to the weights of other tenants."""
    priority: int = 0
    """Priority; lower values are more urgent, as for CUDA streams."""
    devices: frozenset[int] | None = ALL
    rights: frozenset[Right] = EVERYTHING
    quotas: Quotas = field(default_factory=Quotas)

    def may(self, right: Right) -> bool:
        """Returns True if the tenant has the right."""
        return right in self.rights

    @property
    def observes(self) -> bool:
        """True for an operator's tenant, which has the right `observe` or `admin`.

        It may see other tenants' sessions and totals of all tenants, and use the operators' reserve.
        """
        return not self.rights.isdisjoint(rights.OPERATING)

    def require(self, needed: Collection[Right], operation: str) -> None:
        """Raises `PERMISSION_DENIED` if the tenant lacks one of these rights."""
        lacking = rights.missing(needed, self.rights)
        if lacking:
            raise rights.permission_denied(operation, lacking, self.name)

    def sees(self, ordinal: int) -> bool:
        """Returns True if the tenant may use the device. To the tenant, other devices do not exist."""
        return self.devices is None or ordinal in self.devices


def sees_tenant(viewer: Tenant, name: str) -> bool:
    """Returns True if `viewer` may see sessions and processes of the tenant `name`.

    A tenant sees its own, and all if it is an observer. An empty name means processes that all tenants share.
    """
    return name in ("", viewer.name) or viewer.observes


EVERYONE = Tenant("default")
"""The only tenant of a daemon without authentication."""


# ---- identities ----


@dataclass(frozen=True)
class Credential:
    """A token, as the daemon stores it: never the token itself."""

    key: bytes
    """SHA-256 of the token. A token has 256 random bits and cannot be guessed, so that it needs no salt and no slow
    hash, unlike a password."""
    name: str = ""
    """Name for the audit log."""
    expires: float = float("inf")
    """Unix time of expiry."""


@dataclass(frozen=True)
class User:
    """The peer of a Unix socket, as the kernel reports it."""

    uid: int
    gids: frozenset[int] = frozenset()
    """Ids of all groups, including the primary group."""
    pid: int = 0


@dataclass(frozen=True)
class Caller:
    """The caller of one call."""

    tenant: Tenant
    credential: str = ""
    """Description of the credential: `token ci`, `certificate ci.example.org` or `user 1000`. Empty without
    authentication."""
    peer: str = ""
    """gRPC's name of the peer."""
    uid: int | None = None
    expires: float = float("inf")
    """Unix time until which the credential is valid."""
    proof: bytes | tuple[str, ...] | User | None = None
    """The identity that was shown: a token's `Credential.key`, the names in a certificate, or a user. None: none was
    shown."""
    certificate: CertificateIdentity | None = None
    """The certificate that identified the caller."""


ANONYMOUS = Caller(EVERYONE)
"""The caller of a daemon without authentication."""


class NamedSession(Protocol):
    """A session, as the audit log and spans name it."""

    @property
    def id(self) -> str:
        """The public id of the session."""
        ...

    @property
    def tenant(self) -> Tenant:
        """The tenant to which the session belongs."""
        ...

    @property
    def caller(self) -> Caller:
        """The caller that opened the session."""
        ...


class Directory:
    """Maps identities to tenants. Immutable: a new configuration creates a new directory."""

    def __init__(
        self,
        tenants: Iterable[Tenant] = (),
        tokens: Mapping[Credential, Tenant] | None = None,
        certificates: Mapping[str, Tenant] | None = None,
        users: Mapping[int, Tenant] | None = None,
        groups: Mapping[int, Tenant] | None = None,
    ) -> None:
        self.tenants = {tenant.name: tenant for tenant in tenants}
        # Looked up by hash, so that the duration of a look-up reveals nothing about existing tokens.
        self._tokens = {credential.key: (credential, tenant) for credential, tenant in (tokens or {}).items()}
        self._certificates = dict(certificates or {})
        self._users = dict(users or {})
        self._groups = dict(groups or {})

    @property
    def open(self) -> bool:
        """True if there are no tenants, so that every caller is `EVERYONE`."""
        return not self.tenants

    @property
    def by_user(self) -> bool:
        """True if a tenant is identified by a user or group."""
        return bool(self._users or self._groups)

    @property
    def accepts(self) -> str:
        """The kinds of credentials that a caller can show, as text for errors."""
        kinds = (
            (self._tokens, "a token"),
            (self._certificates, "a client certificate"),
            (self._users or self._groups, "its user on the Unix socket"),
        )
        return " or ".join(name for configured, name in kinds if configured)

    def token(self, token: str, now: float) -> tuple[Tenant, Credential]:
        """Returns the tenant and the credential of a token.

        Raises `UNAUTHENTICATED`, with the same message for every fault of the token except its form and its expiry.
        """
        if not tokens.well_formed(token):
            raise unauthenticated(
                f'The token is unknown: it does not have the form of a token, "{tokens.PREFIX}" and at least '
                f"{tokens.MIN_RANDOM} letters, digits, - and _.",
                "Use the token that the daemon's operator gave you; `hearthd token` creates one.",
            )
        return self._token(token_key(token), now)

    def _token(self, key: bytes, now: float) -> tuple[Tenant, Credential]:
        entry = self._tokens.get(key)
        if entry is None:
            raise unauthenticated("The token is unknown.", "Use the token that the daemon's operator gave you.")
        credential, tenant = entry
        if credential.expires <= now:
            raise unauthenticated(
                "The token has expired.", "Ask the daemon's operator for a new one (`hearthd token` creates one)."
            )
        return tenant, credential

    def certificate(self, names: Iterable[str]) -> tuple[Tenant, str]:
        """Returns the tenant that a client certificate identifies, and the name that matched.

        The TLS layer has verified the certificate. Raises `UNAUTHENTICATED`.
        """
        names = list(names)
        matches = {self._certificates[name].name: (self._certificates[name], name) for name in names
                 if name in self._certificates}  # fmt: skip
        if len(matches) != 1:
            problem = (
                "belongs to no tenant" if not matches else f"belongs to several tenants ({', '.join(sorted(matches))})"
            )
            raise unauthenticated(
                f"The client certificate (for {', '.join(names) or 'no name'}) {problem}.",
                "Use another certificate, or have its name added to `certificates` of a tenant.",
            )
        return next(iter(matches.values()))

    def user(self, user: User) -> tuple[Tenant, str]:
        """Returns the tenant that a user identifies, and a description. Raises `UNAUTHENTICATED`.

        The tenant is found by user, otherwise by the first matching group in the order of the configuration.
        """
        tenant = self._users.get(user.uid)
        if tenant is not None:
            return tenant, f"user {user.uid}"
        for gid, tenant in self._groups.items():
            if gid in user.gids:
                return tenant, f"user {user.uid} of group {gid}"
        raise unauthenticated(
            f"User {user.uid} of this host belongs to no tenant.",
            "Use a token, or have the user or one of its groups added to `users` or `groups` of a tenant.",
        )

    def reidentify(self, caller: Caller, now: float) -> Caller:
        """Identifies a caller again that another directory has identified. Raises `UNAUTHENTICATED`."""
        proof = caller.proof
        if isinstance(proof, bytes):
            tenant, credential = self._token(proof, now)
            return replace(caller, tenant=tenant, credential=f"token {credential.name}", expires=credential.expires)
        if isinstance(proof, tuple):
            tenant, name = self.certificate(proof)
            return replace(caller, tenant=tenant, credential=f"certificate {name}")
        if isinstance(proof, User):
            tenant, name = self.user(proof)
            return replace(caller, tenant=tenant, credential=name)
        return caller


def token_key(token: str) -> bytes:
    """Returns the hash of a token, which the configuration contains."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


def unauthenticated(message: str, fix: str) -> Refusal:
    return Refusal(Reason.UNAUTHENTICATED, message, fix=fix)
