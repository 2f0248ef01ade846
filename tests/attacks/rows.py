"""Rows of attacks and their budgets."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from tests.attacks.target import Target

MODULES: tuple[str, ...] = ("controls", "messages", "http_requests", "connections", "floods")
"""Modules of this package that define `ROWS`."""

Attack = Callable[[Target, float], dict[str, int]]
"""Runs against a target for a number of seconds; returns counts of its actions for the report."""


@dataclass(frozen=True)
class Budget:
    """Limits on the cost of an attack."""

    growth_mib: float = 32.0
    """Maximum growth in MiB of the front's resident memory during the attack, above its maximum before."""
    kept_mib: float = 8.0
    """Maximum growth in MiB that remains after the attack."""
    descriptors: int = 0
    """Maximum number of additional descriptors of the front that remain after the attack."""
    slower: float = 3.0
    """Maximum of the tenant's 99th percentile during the attack, as a multiple of the one before."""
    rate: float = 0.0
    """Minimum of the tenant's rate during the attack, as a fraction of the one before."""


@dataclass(frozen=True)
class Row:
    """An attack. `attack` is a function of the module that defines the row."""

    name: str
    attack: Attack
    budget: Budget = Budget()
    strangers: int = 1
    """Number of processes that run the attack concurrently."""
    via: str = "unix"
    """The listener that the tenant uses: ``unix`` or ``grpc``."""
    config: dict[str, Any] = field(default_factory=dict)
    """Sections of the daemon's configuration, in addition to its tenants."""
    open_files: int = 0
    """The daemon's limit of descriptors, soft and hard; 0: inherited."""
    prepare: Callable[[], object] = lambda: None
    """Prepares the data of the attack before it starts."""


def load(names: Iterable[str] = ()) -> list[Row]:
    """Returns the rows of these modules or with these names; all rows if `names` is empty. Raises `ValueError`."""
    rows: list[Row] = []
    wanted = set(names)
    for module in MODULES:
        found: tuple[Row, ...] = importlib.import_module(f"tests.attacks.{module}").ROWS
        rows += [row for row in found if not wanted or {module, row.name} & wanted]
    known = {*MODULES, *(row.name for row in load())} if wanted else wanted
    if wanted - known:
        raise ValueError(
            f"no attack is called {', '.join(sorted(wanted - known))}; there are {', '.join(sorted(known))}"
        )
    return rows
