"""`hearth.aio` has the surface of `hearth`: the same names, with coroutines for the calls that wait in the other
client."""

from __future__ import annotations

import inspect
import subprocess
import sys
from typing import Any

import pytest

import hearth
from hearth import aio
from hearth.aio.module import GlobalArray
from hearth.blocking import module

WAITS: dict[str, set[str]] = {
    "Node": {
        "synchronize", "describe", "sessions", "status", "end_session", "restart_device", "drain", "close",
    },
    "Device": {
        "state", "generation", "synchronize", "flush", "memory_usage", "memory_cleanup", "prepare", "publish",
        "unpublish", "attach", "attach_event", "published", "dispatch", "get", "cancel",
    },
    "DeviceArray": {"get", "item", "tolist", "tobytes", "readinto", "ipc", "publish"},
    "RawModule": {"compile", "functions", "globals", "get_global"},
    "Function": {
        "attributes", "num_regs", "shared_size_bytes", "local_size_bytes", "const_size_bytes",
        "max_threads_per_block", "max_dynamic_shared_size_bytes", "parameters", "occupancy", "forall",
        "ptx_version", "binary_version", "cache_mode_ca", "preferred_shared_memory_carveout",
    },
    "Stream": {"synchronize", "done", "cancel", "end_capture"},
    "Event": {"synchronize", "done", "elapsed", "publish"},
    "Graph": set(),
    "Prepared": set(),
    "Profile": set(),
    "Trace": set(),
    "Group": {"subgroup", "rebuild", "flight_recorder", "close"},
    "PendingDispatch": {"result", "cancel"},
}  # fmt: skip
"""Awaited methods of each class. All other methods are plain calls, as in `hearth`."""

MORE = {"Device": {"ready"}, "Group": {"pair"}}
"""Methods that only `hearth.aio` has."""

ASYNC_WITH = {"Node", "Graph", "Prepared", "Profile", "Trace", "Group"}


def public(cls: type) -> set[str]:
    return {name for name in dir(cls) if not name.startswith("_")}


@pytest.mark.parametrize("name", WAITS)
def test_the_names_are_the_same(name: str) -> None:
    ours, theirs = getattr(aio, name), getattr(hearth, name)
    assert public(ours) ^ public(theirs) == MORE.get(name, set())


@pytest.mark.parametrize("name", WAITS)
def test_classes_of_the_two_clients_are_siblings(name: str) -> None:
    ours, theirs = getattr(aio, name), getattr(hearth, name)
    shared = [each for each in ours.__mro__ if each in theirs.__mro__ and each is not object]
    assert shared and not issubclass(ours, theirs) and not issubclass(theirs, ours)


@pytest.mark.parametrize("name", WAITS)
def test_waiting_methods_are_coroutines(name: str) -> None:
    ours = getattr(aio, name)
    found = {each for each in public(ours) if inspect.iscoroutinefunction(inspect.getattr_static(ours, each))}
    more = {each for each in MORE.get(name, set()) if inspect.iscoroutinefunction(getattr(ours, each))}
    assert found == WAITS[name] | more


@pytest.mark.parametrize("name", WAITS)
def test_arguments_are_the_same(name: str) -> None:
    ours, theirs = getattr(aio, name), getattr(hearth, name)
    for each in public(theirs):
        here, there = inspect.getattr_static(ours, each), inspect.getattr_static(theirs, each)
        if not inspect.isfunction(there):  # a property of `hearth` that waits is a method without arguments here
            assert here is there or list(inspect.signature(here).parameters) == ["self"], each
            continue
        assert parameters(here) == parameters(there), each


def parameters(function: Any) -> list[tuple[str, object, object]]:
    return [(each.name, each.kind, each.default) for each in inspect.signature(function).parameters.values()]


@pytest.mark.parametrize("name", WAITS)
def test_a_block_whose_end_waits_is_entered_by_async_with(name: str) -> None:
    ours = getattr(aio, name)
    assert hasattr(ours, "__aenter__") == hasattr(ours, "__aexit__") == (name in ASYNC_WITH)
    if name in ASYNC_WITH:
        with pytest.raises(TypeError, match="async with"):
            ours.__enter__(object.__new__(ours))


def test_connect() -> None:
    assert parameters(aio.connect) == parameters(hearth.connect)
    assert inspect.iscoroutinefunction(aio.get_elapsed_time)
    assert parameters(aio.get_elapsed_time) == parameters(hearth.get_elapsed_time)
    assert public(GlobalArray) == public(module.GlobalArray)


def test_every_class_that_waits_has_an_asyncio_counterpart() -> None:
    def waits(cls: type) -> bool:
        return any(hasattr(cls, name) for name in ("synchronize", "result", "compile", "launch", "get", "events"))

    classes = {name for name in hearth.__all__ if inspect.isclass(getattr(hearth, name))}
    assert {name for name in classes if waits(getattr(hearth, name))} <= set(aio.__all__)
    assert sorted(aio.__all__) == dir(aio)
    with pytest.raises(AttributeError):
        aio.nothing  # noqa: B018


def test_aio_is_imported_at_its_first_use() -> None:
    code = (
        "import sys, hearth; assert 'asyncio' not in sys.modules and 'hearth.aio' not in sys.modules;"
        "aio = hearth.aio; assert 'numpy' not in sys.modules; assert aio.connect and aio is sys.modules['hearth.aio']"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
