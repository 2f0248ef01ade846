"""Names of Hearth in the tables of docs/coming-from*.md and limits.md exist; unsupported calls are refused."""

from __future__ import annotations

import multiprocessing
import pickle
import re
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hearth
from tests.support.daemon.harness import DaemonProcess, on_cpu
from tests.support.folders import ROOT

SET_LATER = ("hearth.aio", "hearth.dask", "x.data", "hearth.session", "f.name", "s.priority")
"""Names that no class has: modules, and attributes of instances."""
OWNERS: dict[str, Any] = {
    "hearth": hearth,
    "node": hearth.Node,
    "gpu": hearth.Device,
    "x": hearth.DeviceArray,
    "f": hearth.Function,
    "s": hearth.Stream,
    "g": hearth.Graph,
    "later": hearth.Event,
    "error": hearth.HearthError,
}


def hearths_column(page: str) -> str:
    """Returns the text of a page outside programs; of tables the last column only."""
    text = re.sub(r"^```.*?^```", "", page, flags=re.DOTALL | re.MULTILINE)
    return "\n".join(line.rsplit(" | ", 1)[-1] if line.startswith("|") else line for line in text.splitlines())


@pytest.mark.parametrize("name", ["coming-from", "coming-from-cupy", "limits"])
def test_the_names_exist(name: str) -> None:
    text = hearths_column((ROOT / "docs" / f"{name}.md").read_text())
    missing, seen = set(), 0
    for code in re.findall(r"`([^`]+)`", text):
        for owner, attribute in re.findall(r"(?<![\w.\]])(hearth|node|gpu|x|f|s|g|later|error)\.([a-zA-Z_]\w*)", code):
            seen += 1
            # `failures`, `f.name` and the like are set in __init__
            known = hasattr(OWNERS[owner], attribute) or owner == "error" or hasattr(hearth, attribute)
            if not known and f"{owner}.{attribute}" not in SET_LATER:
                missing.add(f"{owner}.{attribute}")
    assert not missing
    assert seen > 10


SOURCE = 'extern "C" __global__ void f(float* x) { }'


def compiled(gpu: hearth.Device, *options: str) -> None:
    gpu.RawModule(code=SOURCE, options=options).compile()


def refused(x: hearth.DeviceArray) -> None:
    try:
        x.get()
    except hearth.ClosedError:
        sys.exit(3)


def forked(gpu: hearth.Device) -> None:
    child = multiprocessing.get_context("fork").Process(target=refused, args=(gpu.zeros(1),))
    child.start()
    child.join(30)
    assert child.exitcode == 3
    raise hearth.ClosedError("as above")


def written(gpu: hearth.Device) -> None:
    x = gpu.zeros(4)
    x.publish("limits")
    x.fill(1)
    gpu.synchronize()


REFUSALS: dict[str, tuple[type[Exception], Callable[[hearth.Device], Any]]] = {
    "arithmetic": (hearth.UnsupportedError, lambda gpu: gpu.zeros(4) + 1),  # type: ignore[operator]
    "comparison": (hearth.UnsupportedError, lambda gpu: gpu.zeros(4) == 1),
    "function of NumPy": (hearth.UnsupportedError, lambda gpu: np.sum(gpu.zeros(4))),  # type: ignore[call-overload]
    "pickling": (hearth.UnsupportedError, lambda gpu: pickle.dumps(gpu.zeros(4))),
    "objects": (hearth.DtypeError, lambda gpu: gpu.asarray(np.array([object()]))),
    "host array as an argument": (
        hearth.LaunchTypeError,
        lambda gpu: gpu.RawKernel(SOURCE, "f")(1, 1, (np.zeros(3),)),
    ),
    "linking": (hearth.HearthError, lambda gpu: gpu.RawModule(code=[SOURCE, SOURCE]).compile()),
    "code for other linkers": (hearth.CompileError, lambda gpu: compiled(gpu, "-ewp")),
    "file of the host": (hearth.CompileError, lambda gpu: compiled(gpu, "--pre-include=a.h")),
    "write to a published array": (hearth.ArgumentError, written),
    "forked child": (hearth.ClosedError, forked),
    "limit of shared memory": (hearth.ArgumentError, lambda gpu: setattr(
        gpu.RawKernel(SOURCE, "f"), "max_dynamic_shared_size_bytes", 1 << 30
    )),
    "address": (AttributeError, lambda gpu: gpu.zeros(4).data),  # type: ignore[attr-defined]
}  # fmt: skip


@on_cpu
@pytest.mark.parametrize("limit", REFUSALS)
def test_documented_limits_are_refused(limit: str, daemon: DaemonProcess) -> None:
    kind, use = REFUSALS[limit]
    with hearth.connect(daemon.unix) as node, pytest.raises(kind):
        use(node.device(0))
