"""Rows of attacks and their budgets."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from tests.attacks.target import Target

MODULES: tuple[str, ...] = ("controls", "messages", "http_requests", "connections", "floods")
"""Modules of this package that hold `ROWS`."""

Attack = Callable[[Target, float], dict[str, int]]
"""Runs against a target for a number of seconds; returns counts of what it did, for the report."""


@dataclass(frozen=True)
class Budget:
    """Limits on the cost of an attack."""

    growth_mib: float = 32.0
    """Growth of the front's resident memory during the attack, above its highest before."""
    kept_mib: float = 8.0
    """Growth that is left after the attack."""
    descriptors: int = 0
    """Descriptors of the front that are left after the attack."""
    slower: float = 3.0
    """The tenant's 99th percentile during the attack, as a multiple of the one before."""
    rate: float = 0.0
    """The tenant's rate during the attack, as a part of the one before."""


@dataclass(frozen=True)
class Row:
    """An attack. `attack` is a function of the module that holds the row."""

    name: str
    attack: Attack
    budget: Budget = Budget()
    strangers: int = 1
    """Processes that run the attack at once."""
    via: str = "unix"
    """The listener that the tenant uses: ``unix`` or ``grpc``."""
    config: dict[str, Any] = field(default_factory=dict)
    """Sections of the daemon's configuration, beside its tenants."""
    open_files: int = 0
    """The daemon's limit of descriptors, soft and hard; 0: as it comes."""
    prepare: Callable[[], object] = lambda: None
    """Makes what the attack sends, before it begins."""


def load(names: Iterable[str] = ()) -> list[Row]:
    """Rows of these modules or of these names; all of them where `names` is empty. Raises `ValueError`."""
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
