"""Daemons with tenants: sections of the configuration, and the tenants' tokens.

>>> config, tokens = tenants("alice", "bob")
>>> daemon = start_daemon(**config)
>>> with daemon.connect(token=tokens["alice"]) as node: ...
>>> with Raw(daemon.unix, tokens["bob"]) as raw: ...

`tenant(name, **settings)` configures one tenant in detail: ``tenants("admin", tenant("guest", rights=["read"],
devices=[0], quotas={"sessions": 2}))``.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Mapping
from typing import Any


def token_hash(token: str) -> str:
    """Returns the hash of a token, as the configuration stores it."""
    return "sha256:" + hashlib.sha256(token.encode()).hexdigest()


def new_token() -> str:
    return "hearth_" + secrets.token_urlsafe(32)


def tenant(name: str, **settings: Any) -> dict[str, Any]:
    """Returns a tenant's table; `tenants` adds a token unless `settings` identify the tenant."""
    return {"name": name, **settings}


def tenants(*who: str | Mapping[str, Any], **sections: Any) -> tuple[dict[str, Any], dict[str, str]]:
    """Returns sections for `start_daemon(**sections)` with these tenants (and the other sections given), and the tokens
    by tenant name."""
    tables: list[dict[str, Any]] = []
    tokens: dict[str, str] = {}
    for each in who:
        table = dict(tenant(each) if isinstance(each, str) else each)
        if not {"tokens", "users", "groups", "certificates"} & set(table):
            token = tokens[table["name"]] = new_token()
            table["tokens"] = [token_hash(token)]
        tables.append(table)
    return {"tenants": tables, **sections}, tokens


def filled(text: str) -> str:
    """Returns a sample configuration in which each placeholder is replaced by a hash."""
    return re.sub(r"sha256:PUT[-A-Za-z]*HERE", lambda found: token_hash(found[0]), text)
