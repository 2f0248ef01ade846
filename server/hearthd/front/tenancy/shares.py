"""Shares of a global limit: how many of `sessions.max` or `devices.max_processes` one tenant may take. Pure.

Half of a limit is guaranteed, divided among all configured tenants by weight; the other half is lent to whoever asks. A
tenant borrows no more than what is left for others to borrow (dynamic thresholds, as in the shared buffers of network
switches: Choudhury and Hahne, 1998), so that even a single one that takes all it can leaves room for the next. A
reserve is lent to operators only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

GUARANTEED = 0.5
"""The part of a limit that is divided by weight."""
RESERVE = 16
"""One in so many is kept for operators."""
_OPERATORS = frozenset({"admin", "observe"})


def reserve(limit: int) -> int:
    """How many of a limit are kept for operators; none of a very small one."""
    return limit // RESERVE or int(limit >= RESERVE // 2)


def operates(rights: frozenset[str]) -> bool:
    """Whether a tenant with these rights is an operator's."""
    return not _OPERATORS.isdisjoint(map(str, rights))


@dataclass(frozen=True)
class Shares:
    """One limit."""

    limit: int
    weights: Mapping[str, float] = field(default_factory=dict)
    """Of all configured tenants, by name."""
    reserve: int = 0

    @property
    def pool(self) -> int:
        """What there is for everybody."""
        return max(0, self.limit - self.reserve)

    def guarantee(self, tenant: str) -> int:
        """How many a tenant can always have; all of the pool where it is the only one."""
        weight = self.weights.get(tenant, 0.0)
        if not weight:
            return 0
        if len(self.weights) == 1:
            return self.pool
        return int(self.pool * GUARANTEED * weight / sum(self.weights.values()))

    def admits(self, tenant: str, used: Mapping[str, int], *, operator: bool = False) -> bool:
        """Whether a tenant may have one more, where these are in use by tenant."""
        mine, guarantee = used.get(tenant, 0), self.guarantee(tenant)
        taken = sum(max(used.get(name, 0), self.guarantee(name)) for name in self.weights.keys() | used.keys())
        if mine < guarantee:
            return sum(used.values()) < self.limit
        if operator:
            return taken < self.limit
        free = self.pool - taken
        return free > 0 and (mine - guarantee) < max(1, free)

    def most(self, tenant: str, used: Mapping[str, int], *, operator: bool = False) -> int:
        """How many a tenant may have in all, while others keep what they have."""
        now = dict(used)
        while self.admits(tenant, now, operator=operator):
            now[tenant] = now.get(tenant, 0) + 1
        return now.get(tenant, 0)
