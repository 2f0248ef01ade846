"""Modules and their functions under a client's handles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hearth_proto.reasons import Refusal
from hearthd.device.backend.resources import Function, Module
from hearthd.device.flows.segment import SessionRef
from hearthd.device.session.launch_plan import LaunchPlan


class ModuleEntry:
    """A client's module, which is waiting for its compile, loaded, or failed."""

    def __init__(self, handle: int) -> None:
        self.handle = handle
        self.pending = True
        self.prints: SessionRef | None = None
        """The session that receives the output of the module's kernels; None if no kernel prints."""
        self.module: Module | None = None
        self.error: Refusal | None = None
        self.retry_load: Callable[[], None] | None = None
        """Tries to load the module again, after a load that was refused because the device was busy; None otherwise."""
        self.log = ""
        self.cached = False
        self.compile_ns = 0
        self.holders = 0
        """Number of graphs and prepared launches that use the module; its code is kept for them after the handle is
        destroyed."""
        self.released = False
        self.validating = False
        """True while a validated launch uses the module's access table."""
        self.variables: dict[str, Any] = {}
        """Global variables by name: one `hearthd.device.session.buffer.Buffer` each, shared by all handles of that
        variable."""

    def ensure_loading(self) -> None:
        """Retries a load that failed temporarily, because a command is about to wait for the module."""
        if self.retry_load is not None:
            self.retry_load()

    def loaded(self) -> Module:
        """Returns the loaded module. Raises the error of its compile or load."""
        if self.error is not None:
            raise self.error
        assert self.module is not None, "requested before it was loaded"
        return self.module


class FunctionEntry:
    """A client's function, resolved at its first use. `plans` contains the launches that have been checked."""

    __slots__ = ("function", "handle", "has_launch_memory", "module", "name", "plans", "refused")

    def __init__(self, handle: int, module: ModuleEntry, name: str) -> None:
        self.handle = handle
        self.module = module
        self.name = name
        self.function: Function | None = None
        self.plans: dict[bytes, LaunchPlan] = {}
        self.has_launch_memory = False
        """True once the memory is known to exist that a launch of the function needs, so that it need not wait for an
        idle device."""
        self.refused: tuple[Refusal, Callable[[], bool]] | None = None
        """Refusal of the wait for that memory, and a function that returns True if another attempt may succeed; None
        if not refused."""

    def resolve(self) -> Function:
        """Returns the function of the loaded module. Raises the error of the module's compile or load."""
        if self.function is None:
            self.function = self.module.loaded().function(self.name)
        return self.function
