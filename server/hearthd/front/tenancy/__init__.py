"""Tenants and tenancy policy: the form of tokens, rights, shares of global limits, revoked certificates.

Covers pure policy and the files that it is read from; not authentication (`hearthd.front.auth`) nor what a tenant has
used (`hearthd.front.sessions.tenant_accounts`), which use it.

Above: `hearthd.front.config`. Below: `hearthd.front.sockets`.
"""
