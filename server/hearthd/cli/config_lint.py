"""Warnings of `hearthd check-config` about a configuration that is valid, but possibly not as intended."""

from __future__ import annotations

import os
import resource
import stat
import time
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

from hearthd.confinement.support import support
from hearthd.front.addresses import parse_address
from hearthd.front.config import exposure
from hearthd.front.config.loader import Config, ConfigError
from hearthd.front.connections import descriptors

SOON_S = 14 * 86400
"""Time before the expiry of a credential, in seconds, from which on there is a warning."""


class LintAdvice(NamedTuple):
    """Warning about a configuration that is valid, but possibly not as intended."""

    setting: str
    """Name of the setting, or path of the file, to which the warning applies."""
    text: str
    blocks_start: bool = False
    """True if the daemon would not start on this host."""

    def __str__(self) -> str:
        return f"{self.setting}: {self.text}"


def advise(config: Config, path: Path | None = None, now: float | None = None) -> list[LintAdvice]:
    """Returns all warnings that apply on this host for the calling user.

    Raises `ConfigError` if the daemon would not start.
    """
    now = time.time() if now is None else now
    return [
        *_file(path),
        *_exposure(config),
        *_logins(config),
        *_reach(config),
        *_backend(config),
        *_tls(config, now),
        *_audit(config),
        *_tenants(config, now),
    ]


def exposed(address: str) -> bool:
    """True if other hosts can reach the address."""
    return bool(address) and not parse_address(address).loopback


def _file(path: Path | None) -> Iterator[LintAdvice]:
    if path is not None and path.stat().st_mode & stat.S_IWOTH:
        yield LintAdvice(str(path), f"every user may write it, and could become any tenant; chmod o-w {path}")


def _exposure(config: Config) -> Iterator[LintAdvice]:
    exposed_listeners = [name for name in ("grpc", "http", "lanes") if exposed(getattr(config.listen, name))]
    if config.insecure and exposed_listeners and not (config.tls.certificate and config.tenants):
        missing = " and ".join(
            text
            for text, configured in (("no TLS", config.tls.certificate), ("no tenants", config.tenants))
            if not configured
        )
        yield LintAdvice(
            "insecure", f"other hosts can reach listen.{', listen.'.join(exposed_listeners)}, with {missing}"
        )
    elif config.insecure:
        yield LintAdvice(
            "insecure", "is true, although it is not needed; remove it, so that a later mistake is an error"
        )


def _logins(config: Config) -> Iterator[LintAdvice]:
    address = exposure.unguarded_address(config)
    if address and (address == exposure.UNIX or not exposed(address)):
        yield LintAdvice(
            "tenants",
            f"there are none, so {exposure.reachable_by(address)} may do everything through {address}; {exposure.FIX}",
        )


def _reach(config: Config) -> Iterator[LintAdvice]:
    listen = config.listen
    if exposed(listen.grpc) and listen.lanes and not exposed(listen.lanes) and config.lanes.enabled:
        yield LintAdvice(
            "listen.lanes",
            f"{listen.lanes} cannot be reached by clients on other hosts, whose bulk data then uses gRPC and is "
            f'several times slower; listen where gRPC does, e.g. "{parse_address(listen.grpc).host}:7423"',
        )
    if exposed(listen.grpc) and config.collectives.listen and not exposed(config.collectives.listen):
        yield LintAdvice(
            "collectives.listen",
            f"{config.collectives.listen} cannot be reached by daemons on other hosts: groups that are created "
            f"here can contain only this node",
        )
    host = parse_address(config.collectives.listen).host if config.collectives.listen else ""
    if host in ("0.0.0.0", "::", "") and config.collectives.listen and not config.collectives.advertise:
        yield LintAdvice(
            "collectives.advertise", "is empty: other daemons get this host's name, which they must be able to look up",
        )  # fmt: skip
    addresses = {
        f"listen.{name}": parse_address(value)
        for name, value in (("grpc", listen.grpc), ("http", listen.http), ("lanes", config.lane_address))
        if value
    }
    for (name, address), (other, taken) in combinations(addresses.items(), 2):
        overlaps = address.host == taken.host or address.wildcard or taken.wildcard
        if address.port and address.port == taken.port and overlaps:
            yield LintAdvice(other, f"port {taken.port} is that of {name}; configure another port", blocks_start=True)
    if not (listen.grpc or config.unix_path):
        yield LintAdvice("listen", "neither grpc nor unix: no client can connect")


def _descriptors(config: Config, devices: int) -> Iterator[LintAdvice]:
    """Yields warnings about the daemon's budget of open files under this shell's limit.

    `devices` is the number of devices that the daemon would serve.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = descriptors.MOST if hard == resource.RLIM_INFINITY else min(hard, descriptors.MOST)
    processes = devices * min(config.devices.max_processes, max(1, len(config.tenants)))
    requested = config.connections.requested
    budget = descriptors.budget(limit, descriptors.USED, processes, requested)
    if not budget.is_too_low:
        return
    effect = f"leaves {budget.shares['grpc']} connections to gRPC and {budget.shares['call']} to the call socket"
    if requested and budget.needed > descriptors.MOST:
        setting = "max" if requested == config.connections.max else "max_strangers"
        yield LintAdvice(f"connections.{setting}", f"the daemon opens at most {descriptors.MOST} files, which {effect}")
    else:
        yield LintAdvice(
            "connections",
            f"this shell's limit on open files is {hard}, which {effect}; raise it to {budget.needed} or more "
            "(ulimit -n, LimitNOFILE in the unit)",
        )


def _backend(config: Config) -> Iterator[LintAdvice]:
    from hearthd.front.supervisor import backends

    try:
        backend, devices = backends.choose(config)
    except ConfigError as error:
        yield LintAdvice("devices", f"on this host, the daemon would not start: {error}", blocks_start=True)
        yield from _descriptors(config, 1)
        return
    yield from _descriptors(config, len(devices))
    if backend == "cpu" and any(exposed(getattr(config.listen, name)) for name in ("grpc", "http", "lanes")):
        yield LintAdvice(
            "devices.cpu_on_network",
            "clients on other hosts run native code on this host, in processes of the daemon's user; only what this "
            f"kernel offers confines it ({support()})",
        )
    if backend == "cpu" and config.tenants and config.devices.cpu_tenants == "trusted":
        yield LintAdvice(
            "devices.cpu_tenants",
            '"trusted": tenants of the CPU backend run native code, and their isolation is not guaranteed; the '
            f"daemon uses what this kernel offers ({support()})",
        )
    for tenant in config.tenants:
        unknown = [] if tenant.devices == "all" else [ordinal for ordinal in tenant.devices if ordinal >= len(devices)]
        if unknown:
            yield LintAdvice(
                f"tenants.{tenant.name}.devices",
                f"{unknown} do not exist: this host has devices 0 to {len(devices) - 1}",
            )


def _tls(config: Config, now: float) -> Iterator[LintAdvice]:
    tls = config.tls
    files = {"certificate": tls.certificate, "key": tls.key, "client_ca": tls.client_ca, "crl": tls.crl}
    unreadable = [
        LintAdvice(f"tls.{name}", f"{path} cannot be read by user {os.getuid()}, so it was not checked")
        for name, path in files.items()
        if path and not os.access(path, os.R_OK) and _may_exist(Path(path))
    ]
    yield from unreadable
    if not tls.certificate or unreadable:
        return
    from hearthd.front.auth.tls import ServerCertificates, TlsError

    try:
        ServerCertificates(tls.certificate, tls.key, tls.client_ca)
    except (TlsError, OSError) as error:
        raise ConfigError(str(error)) from None
    if tls.crl:
        yield from _revocations(tls.crl, tls.client_ca, now)
    mode = Path(tls.key).stat().st_mode
    if mode & stat.S_IRGRP:
        yield LintAdvice("tls.key", f"a group may read {tls.key}; chmod 600 {tls.key}")
    yield from _dates(Path(tls.certificate), now)


def _revocations(crl: str, client_ca: str, now: float) -> Iterator[LintAdvice]:
    from hearthd.front.tenancy.revocations import RevocationError, Revocations

    try:
        until = Revocations(crl, client_ca).next_update
    except RevocationError as error:
        raise ConfigError(str(error)) from None
    if until <= now:
        yield LintAdvice("tls.crl", f"{crl} expired {_day(until)} and should be renewed; it remains in force")


def _may_exist(path: Path) -> bool:
    """Returns False if the file certainly does not exist."""
    try:
        return path.exists()
    except PermissionError:
        return True


def _dates(certificate: Path, now: float) -> Iterator[LintAdvice]:
    from cryptography import x509

    until = min(cert.not_valid_after_utc for cert in x509.load_pem_x509_certificates(certificate.read_bytes()))
    if until.timestamp() - now < SOON_S:
        yield LintAdvice(
            "tls.certificate", f"{certificate} expires {until:%Y-%m-%d %H:%M} UTC; renew its files in place"
        )


def _audit(config: Config) -> Iterator[LintAdvice]:
    path = config.audit.path
    if path and not os.access(path if Path(path).exists() else Path(path).parent, os.W_OK):
        yield LintAdvice(
            "audit.path",
            f"user {os.getuid()} cannot append to {path}, so the daemon would not start; run this check as the "
            "daemon's user, or create the directory",
            blocks_start=True,
        )
    elif config.tenants and not path:
        yield LintAdvice("audit.path", "is empty: no record is kept of the actions and refusals of tenants")


def _tenants(config: Config, now: float) -> Iterator[LintAdvice]:
    for tenant in config.tenants:
        for token in tenant.tokens:
            credential = token.credential()
            name = f"tenants.{tenant.name}.tokens"
            if credential.expires <= now:
                yield LintAdvice(name, f"token {credential.name!r} expired {_day(credential.expires)}")
            elif credential.expires - now < SOON_S:
                yield LintAdvice(name, f"token {credential.name!r} expires {_day(credential.expires)}")
    if config.tenants and not any("admin" in tenant.rights for tenant in config.tenants):
        yield LintAdvice(
            "tenants", 'no tenant has the right "admin", to see and end all sessions, drain, and restart devices'
        )


def _day(timestamp: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(timestamp))
