"""A daemon that speaks TLS and knows one tenant, lent to one test after the other."""

from __future__ import annotations

from pathlib import Path

from .lent import LentDaemon
from .tenants import tenants
from .test_tls import Authority


class SecuredDaemon(LentDaemon):
    """`authority` has signed its certificate; `token` is alice's."""

    def __init__(self, cache: Path, folder: Path) -> None:
        self.authority = Authority(folder / "ca")
        certificate, key = self.authority.issue("localhost", "127.0.0.1")
        config, tokens = tenants("alice", tls={"certificate": str(certificate), "key": str(key)})
        self.token = tokens["alice"]
        super().__init__(cache, config, 1)
