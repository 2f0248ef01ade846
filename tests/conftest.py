"""Configuration shared by all tests."""

from __future__ import annotations

import gc
import os
import signal
import sys
import tempfile
import threading
import warnings
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from hearth_proto import grpc_import

grpc_import.import_grpc(grpc_import.CLIENT)  # tests fork: with gRPC's fork handlers, that can end the test process

_BEFORE = pytest.StashKey[tuple[dict[str, str], Path]]()
"""The environment variables and the working directory before a test."""

# The duration of an example depends on the load of the machine, so Hypothesis does not limit it.
settings.register_profile("hearth", deadline=None, print_blob=True)
settings.load_profile("hearth")

# Tests start hundreds of daemons and clients. Without cached bytecode each of them would first compile all of Hearth,
# which takes a third of its start. Therefore bytecode is written (into __pycache__) even if PYTHONDONTWRITEBYTECODE is
# set.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# A socket path has at most 107 bytes, and tests create sockets below the temporary directory. If the path of the
# temporary directory is long, the tests use /tmp. The daemons and programs that they start keep the long one.
if len(tempfile.gettempdir()) > 16 and os.access("/tmp", os.W_OK | os.X_OK):
    tempfile.tempdir = "/tmp"

# A shell starts background commands with SIGINT ignored, and `nohup` starts its command with SIGHUP ignored. Programs
# inherit both settings, but tests send these signals to them, so the defaults are restored.
if threading.current_thread() is threading.main_thread():
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


def settle() -> None:
    """Freezes all existing objects, so that garbage collections skip them: a collection that a test requests then takes
    a millisecond instead of half a second."""
    gc.collect()
    gc.freeze()


def pytest_collection_finish() -> None:
    """Freezes the half gigabyte of objects that collecting thousands of tests creates; they exist until the end of the
    run."""
    settle()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Disables garbage collection while tests are collected: it would take a tenth of the time and would find
    nothing."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.fixture(scope="module", autouse=True)
def _settled() -> None:
    """Freezes all objects again if a test has unfrozen them."""
    if not gc.get_freeze_count():
        settle()


@pytest.fixture(scope="module", autouse=True)
def _no_current_stream(request: pytest.FixtureRequest) -> Iterator[None]:
    """Restores the default stream if a test has left another one current, which changes the path of later launches in
    this process. A warning names the module."""
    yield
    scope = sys.modules.get("hearth.stream_scope")
    if scope is not None and scope.current_streams.get() is not None:
        scope.current_streams.set(None)
        warnings.warn(f"{request.node.nodeid} has left a stream current", stacklevel=1)


_FREE = ("PYTEST_CURRENT_TEST", "GRPC_VERBOSITY", "PYDANTIC_DISABLE_PLUGINS")
"""Variables that pytest, and programs of Hearth that run in this process, may change."""
_NCCL = "NCCL_"
"""Prefix of NCCL's variables: a GPU test that creates a `CudaServer` in this process sets them, as a device process
does."""


def _surroundings() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in _FREE and not name.startswith(_NCCL)}


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    item.stash[_BEFORE] = (_surroundings(), Path.cwd())
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    """Fails a test that leaves the environment or the working directory changed, and restores both. Otherwise every
    daemon that the pytest worker starts later would be started by a new interpreter, which costs several times as much
    as a fork."""
    result = yield
    (variables, folder), now = item.stash[_BEFORE], _surroundings()
    changed = sorted(name for name in variables.keys() | now.keys() if variables.get(name) != now.get(name))
    for name in changed:
        os.environ.pop(name, None)
        if name in variables:
            os.environ[name] = variables[name]
    moved = Path.cwd() != folder
    os.chdir(folder)
    assert not changed, f"the test has changed variables of the environment: {', '.join(changed)}"
    assert not moved, "the test has changed the working directory"
    return result


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--leave-out", type=Path, metavar="FILE", help="leaves out the tests and modules that FILE lists")
    parser.addoption("--only-listed", type=Path, metavar="FILE", help="runs only the tests and modules that FILE lists")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for option, wanted in (("leave_out", False), ("only_listed", True)):
        if file := config.getoption(option):
            listed = set(file.read_text().splitlines())
            parts: dict[bool, list[pytest.Item]] = {True: [], False: []}
            for item in items:
                parts[_is_listed(item, listed)].append(item)
            config.hook.pytest_deselected(items=parts[not wanted])
            items[:] = parts[wanted]


def _is_listed(item: pytest.Item, listed: set[str]) -> bool:
    """Returns True if the test, without its parameters, or its whole module is in the list."""
    return not listed.isdisjoint({item.nodeid.partition("[")[0], item.nodeid.partition("::")[0]})


_LONGEST_NAME = 60


def pytest_make_parametrize_id(config: object, val: object, argname: str) -> str | None:
    """Shortens a long parameter value in the test's name, which would otherwise contain tens of thousands of bytes."""
    if isinstance(val, bytes | str) and len(val) > _LONGEST_NAME:
        return f"{val[:_LONGEST_NAME]!r}... ({len(val)})"
    return None
