"""What a graph or a list of prepared launches uses, and keeps: its buffers and modules live as long as it does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from hearthd.device.session.buffer import Buffer
from hearthd.device.session.module import ModuleEntry
from hearthd.device.session.session import DeviceSession
from hearthd.device.streams.ordering import Usage


class Uses(NamedTuple):
    """What one launch, copy or fill touches."""

    written: tuple[Buffer, ...] = ()
    read: tuple[Buffer, ...] = ()
    modules: tuple[ModuleEntry, ...] = ()
    needed: tuple[Buffer, ...] = ()
    """Those whose contents it depends on."""
    replaced: Buffer | None = None
    """The one whose contents it replaces as a whole."""


class Keeper(Protocol):
    """Keeps buffers: `hearthd.device.memory.commands.MemoryCommands`."""

    def hold(self, buffer: Buffer) -> None: ...
    def let_go(self, session: DeviceSession, buffer: Buffer) -> None: ...


class ModuleKeeper(Protocol):
    """Keeps modules: `hearthd.device.launch.module_commands.ModuleCommands`."""

    def hold(self, entry: ModuleEntry) -> None: ...
    def let_go(self, session: DeviceSession, entry: ModuleEntry) -> None: ...


class Keepers(NamedTuple):
    """Whom to ask to keep something."""

    memory: Keeper
    modules: ModuleKeeper


class Summary:
    """All uses of a sequence together, as one command that is ordered, skipped and fails as a whole."""

    __slots__ = ("needed", "prints", "read", "reads", "renewed", "writes", "written")

    def __init__(self, uses: Sequence[Uses]) -> None:
        written: dict[Buffer, None] = {}
        read: dict[Buffer, None] = {}
        needed: dict[Buffer, None] = {}
        renewed: dict[Buffer, None] = {}
        for each in uses:
            written.update(dict.fromkeys(each.written))
            read.update(dict.fromkeys(each.read))
            needed.update((buffer, None) for buffer in each.needed if buffer not in renewed)
            if each.replaced is not None and each.replaced not in needed:
                renewed[each.replaced] = None
        self.written = tuple(written)
        self.read = tuple(buffer for buffer in read if buffer not in written)
        self.needed = tuple(needed)
        """Those whose contents from before the first it depends on."""
        self.renewed = tuple(renewed)
        """Those whose contents it replaces before anything needs them: what failed before does not matter any more."""
        self.prints = next((entry.prints for each in uses for entry in each.modules if entry.prints is not None), None)
        """The session that gets what its kernels print; None where none of them can."""
        self.writes: tuple[Usage, ...] = tuple(buffer.usage for buffer in self.written)
        self.reads: tuple[Usage, ...] = tuple(buffer.usage for buffer in self.read)


class Holdings:
    """The uses of a sequence, held from `add` to `release`."""

    def __init__(self, session: DeviceSession, keepers: Keepers) -> None:
        self._session = session
        self._keepers = keepers
        self._uses: list[Uses] = []
        self._summary: Summary | None = None

    @property
    def summary(self) -> Summary:
        if self._summary is None:
            self._summary = Summary(self._uses)
        return self._summary

    def add(self, uses: Uses) -> None:
        self._hold(uses)
        self._uses.append(uses)
        self._summary = None

    def replace(self, index: int, uses: Uses) -> None:
        """What was used there before goes when the work that uses it is done."""
        if uses == self._uses[index]:
            return  # only values have changed: what all of it uses together need not be found out again
        self._hold(uses)
        before, self._uses[index] = self._uses[index], uses
        self._summary = None
        self._release(before)

    def release(self) -> None:
        """Lets go of everything. A second time does nothing."""
        uses, self._uses = self._uses, []
        self._summary = None
        for each in uses:
            self._release(each)

    def _hold(self, uses: Uses) -> None:
        for buffer in (*uses.written, *uses.read):
            self._keepers.memory.hold(buffer)
        for module in uses.modules:
            self._keepers.modules.hold(module)

    def _release(self, uses: Uses) -> None:
        for buffer in (*uses.written, *uses.read):
            self._keepers.memory.let_go(self._session, buffer)
        for module in uses.modules:
            self._keepers.modules.let_go(self._session, module)
