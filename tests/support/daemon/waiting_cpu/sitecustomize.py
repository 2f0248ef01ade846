"""Makes the CPU backend load code as CUDA does: only while no kernel of the process runs.

Used by a daemon that is started with this folder in PYTHONPATH. No module is imported earlier than without it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

MODULE = "hearthd.device.cpu.server"


class Waits(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        found = PathFinder.find_spec(fullname, path) if fullname == MODULE else None
        if found is not None and found.loader is not None:
            loader: Any = found.loader
            run = loader.exec_module

            def exec_module(module: Any) -> None:
                run(module)
                module.CpuServer.loading_waits = True

            loader.exec_module = exec_module
        return found


sys.meta_path.insert(0, Waits())
