"""A daemon that uses TLS and has one tenant, lent to one test after another."""

from __future__ import annotations

from pathlib import Path

from tests.support.daemon.authority import Authority
from tests.support.daemon.lent import LentDaemon
from tests.support.daemon.tenants import tenants


class SecuredDaemon(LentDaemon):
    """A daemon whose certificate is signed by `authority`; `token` is the token of the tenant alice."""

    def __init__(self, cache: Path, folder: Path) -> None:
        self.authority = Authority(folder / "ca")
        certificate, key = self.authority.issue("localhost", "127.0.0.1")
        config, tokens = tenants("alice", tls={"certificate": str(certificate), "key": str(key)})
        self.token = tokens["alice"]
        super().__init__(cache, config, 1)
