"""Shares of a global limit: the part of `sessions.max` or `devices.max_processes` that one tenant may use. Pure.

Half of a limit is guaranteed, and is divided among all configured tenants by weight. The other half is lent on request.
A tenant may borrow at most as much as is left for other tenants to borrow (dynamic thresholds, as in the shared buffers
of network switches: Choudhury and Hahne, 1998), so that even a single tenant that borrows all it can leaves room for
the next. A reserve is lent to operators only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

GUARANTEED = 0.5
"""The fraction of a limit that is divided by weight."""
RESERVE = 16
"""The divisor of a limit that gives the operators' reserve."""


def reserve(limit: int) -> int:
    """Returns the part of a limit that is reserved for operators. A very small limit has no reserve."""
    return limit // RESERVE or int(limit >= RESERVE // 2)


@dataclass(frozen=True)
class Shares:
    """The shares of one limit."""

    limit: int
    weights: Mapping[str, float] = field(default_factory=dict)
    """The weights of all configured tenants, by name."""
    reserve: int = 0

    @property
    def pool(self) -> int:
        """The part of the limit that every tenant may use."""
        return max(0, self.limit - self.reserve)

    def guarantee(self, tenant: str) -> int:
        """Returns the number that a tenant can always have. A single tenant has the whole pool."""
        weight = self.weights.get(tenant, 0.0)
        if not weight:
            return 0
        if len(self.weights) == 1:
            return self.pool
        return int(self.pool * GUARANTEED * weight / sum(self.weights.values()))

    def admits(self, tenant: str, used: Mapping[str, int], *, operator: bool = False) -> bool:
        """Returns True if the tenant may have one more. `used`: the numbers in use, by tenant."""
        own_count, guarantee = used.get(tenant, 0), self.guarantee(tenant)
        committed = sum(max(used.get(name, 0), self.guarantee(name)) for name in self.weights.keys() | used.keys())
        if own_count < guarantee:
            return sum(used.values()) < self.limit
        if operator:
            return committed < self.limit
        free = self.pool - committed
        return free > 0 and (own_count - guarantee) < max(1, free)
