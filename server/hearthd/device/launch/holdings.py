"""Holdings: the buffers, modules and segments that a graph or a list of prepared launches uses and keeps alive."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hearthd.device.flows.segment import Segment
from hearthd.device.launch.module_commands import ModuleCommands
from hearthd.device.memory.commands import MemoryCommands
from hearthd.device.session.buffer import Buffer
from hearthd.device.session.module import ModuleEntry
from hearthd.device.session.session import DeviceSession
from hearthd.device.streams.ordering import Usage
from hearthd.device.transfers.segments import Segments


class Uses(NamedTuple):
    """Buffers, modules and segments of one launch, copy or fill."""

    written: tuple[Buffer, ...] = ()
    read: tuple[Buffer, ...] = ()
    modules: tuple[ModuleEntry, ...] = ()
    needed: tuple[Buffer, ...] = ()
    """Buffers whose contents the command depends on."""
    replaced: Buffer | None = None
    """The buffer whose entire contents the command replaces; None if there is none."""
    segments: tuple[Segment, ...] = ()
    """Memory that the client shares, and that the command copies from or to."""


class Keepers(NamedTuple):
    """The objects that keep buffers, modules and segments alive.

    Each has the methods `hold` and `unhold`, which are called in pairs.
    """

    memory: MemoryCommands
    modules: ModuleCommands
    segments: Segments


class Summary:
    """Union of the uses of a sequence of launches, copies and fills.

    The sequence is ordered, skipped and failed as one command.
    """

    __slots__ = ("needed", "prints", "read", "reads", "renewed", "writes", "written")

    def __init__(self, uses: Sequence[Uses]) -> None:
        written: dict[Buffer, None] = {}
        read: dict[Buffer, None] = {}
        needed: dict[Buffer, None] = {}
        renewed: dict[Buffer, None] = {}
        for command in uses:
            written.update(dict.fromkeys(command.written))
            read.update(dict.fromkeys(command.read))
            needed.update((buffer, None) for buffer in command.needed if buffer not in renewed)
            if command.replaced is not None and command.replaced not in needed:
                renewed[command.replaced] = None
        self.written = tuple(written)
        self.read = tuple(buffer for buffer in read if buffer not in written)
        self.needed = tuple(needed)
        """Buffers whose contents from before the sequence the sequence depends on."""
        self.renewed = tuple(renewed)
        """Buffers whose contents the sequence replaces before it needs them, so that an earlier failure of these
        buffers has no effect."""
        modules = (entry for command in uses for entry in command.modules)
        self.prints = next((entry.prints for entry in modules if entry.prints is not None), None)
        """The session that receives the output of the sequence's kernels; None if no kernel prints."""
        self.writes: tuple[Usage, ...] = tuple(buffer.usage for buffer in self.written)
        self.reads: tuple[Usage, ...] = tuple(buffer.usage for buffer in self.read)


class Holdings:
    """The uses of a sequence, each kept alive from `add` until it is replaced or released."""

    def __init__(self, session: DeviceSession, keepers: Keepers) -> None:
        self._session = session
        self._keepers = keepers
        self._uses: list[Uses] = []
        self._summary: Summary | None = None

    @property
    def uses(self) -> Sequence[Uses]:
        """The present uses of each command of the sequence, in order."""
        return self._uses

    @property
    def summary(self) -> Summary:
        """The union of the present uses; computed again after a change."""
        if self._summary is None:
            self._summary = Summary(self._uses)
        return self._summary

    def add(self, uses: Uses) -> None:
        """Appends the uses of the next command of the sequence, and holds its objects."""
        self._hold(uses)
        self._uses.append(uses)
        self._summary = None

    def replace(self, index: int, uses: Uses) -> None:
        """Replaces the uses at `index`.

        The previous objects are released when the work that uses them is done.
        """
        if uses == self._uses[index]:
            return  # only values have changed, so the summary stays valid
        self._hold(uses)
        previous, self._uses[index] = self._uses[index], uses
        self._summary = None
        self._release(previous)

    def release(self) -> None:
        """Releases all objects. A second call has no effect."""
        uses, self._uses = self._uses, []
        self._summary = None
        for command_uses in uses:
            self._release(command_uses)

    def _hold(self, uses: Uses) -> None:
        for buffer in (*uses.written, *uses.read):
            self._keepers.memory.hold(buffer)
        for module in uses.modules:
            self._keepers.modules.hold(module)
        for segment in uses.segments:
            self._keepers.segments.hold(segment)

    def _release(self, uses: Uses) -> None:
        for buffer in (*uses.written, *uses.read):
            self._keepers.memory.unhold(self._session, buffer)
        for module in uses.modules:
            self._keepers.modules.unhold(self._session, module)
        for segment in uses.segments:
            self._keepers.segments.unhold(segment)
