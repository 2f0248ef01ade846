"""The `[health]` section: bounds on who watches `grpc.health.v1`."""

from __future__ import annotations

from pydantic import Field

from hearthd.front.config.section import Section


class HealthSettings(Section):
    """Watching takes no credential, so the number of watchers is limited."""

    watchers: int = Field(default=1024, ge=1)  # calls of Health/Watch, in all
    watchers_per_address: int = Field(default=64, ge=1)  # those of the Unix socket count as one address
