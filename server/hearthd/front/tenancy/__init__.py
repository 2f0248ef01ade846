"""Tenants and tenancy policy: the form of tokens, rights, shares of global limits, and revoked certificates.

Covers pure policy and the files from which it is read. Does not cover authentication (`hearthd.front.auth`) or usage
(`hearthd.front.sessions.tenant_accounts`), which use this package.

Above: `hearthd.front.config`. Below: `hearthd.front.sockets`.
"""
