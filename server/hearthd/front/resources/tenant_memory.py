"""Device memory by tenant, from the last reports of the device's processes. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class TenantMemory:
    """The memory of one device by tenant: bytes in buffers, as requested."""

    def __init__(self) -> None:
        self._sizes: dict[int, dict[str, int]] = {}
        self._owners: dict[int, str] = {}

    def set_tenant(self, generation: int, tenant: str) -> None:
        """Attributes all memory of this generation's process to one tenant.

        Empty: several tenants share the process, and its reports name them.
        """
        self._owners[generation] = tenant

    def on_report(self, generation: int, stats: Mapping[str, Any]) -> None:
        """Handles a periodic report of a process. Unusable entries are left out."""
        tenants = stats.get("tenants")
        entries = tenants.items() if isinstance(tenants, dict) else ()
        sizes = {str(name): size for name, size in entries if type(size) is int and size > 0}
        owner = self._owners.get(generation)
        if owner is None:
            sizes = {}
        elif owner:
            sizes = {owner: sum(sizes.values())} if sizes else {}
        self._sizes[generation] = sizes

    def remove_process(self, generation: int) -> None:
        """Removes a process that has ended."""
        self._sizes.pop(generation, None)
        self._owners.pop(generation, None)

    def by_tenant(self) -> dict[str, int]:
        """Returns the bytes by tenant, largest first."""
        total: dict[str, int] = {}
        for sizes in self._sizes.values():
            for name, size in sizes.items():
                total[name] = total.get(name, 0) + size
        return dict(sorted(total.items(), key=lambda item: (-item[1], item[0])))
