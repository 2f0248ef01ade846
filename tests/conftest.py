"""Configuration shared by all tests."""

from __future__ import annotations

import gc
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import settings

_BEFORE = pytest.StashKey[tuple[dict[str, str], Path]]()
"""The environment and the working directory that a test begins with."""

# How long an example takes says how busy the machine is, not whether the code is right.
settings.register_profile("hearth", deadline=None, print_blob=True)
settings.load_profile("hearth")

# Hundreds of daemons and clients are started, and without bytecode each compiles all of Hearth first: a third of its
# start. So where the surroundings ask that none is written, it is written all the same (into __pycache__, as ever).
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# A socket's path has at most 107 bytes, and tests make theirs below the temporary directory. Where that one's path is
# long, they have another; the daemons and programs that they start have the long one.
if len(tempfile.gettempdir()) > 16 and os.access("/tmp", os.W_OK | os.X_OK):
    tempfile.tempdir = "/tmp"

# A shell runs what it puts in the background with Ctrl-C ignored, and programs inherit that; tests send it.
# What `nohup` runs inherits the same of the end of its terminal.
if threading.current_thread() is threading.main_thread():
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


def settle() -> None:
    """Freezes all present objects: no later collection visits them, and one that a test asks for takes a millisecond,
    not half a second."""
    gc.collect()
    gc.freeze()


def pytest_collection_finish() -> None:
    """Thousands of tests are half a gigabyte of objects that stay to the end."""
    settle()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Looking for garbage among them takes a tenth of the time, and there is none."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.fixture(scope="module", autouse=True)
def _settled() -> None:
    """Some tests have all objects looked at again."""
    if not gc.get_freeze_count():
        settle()


_FREE = ("PYTEST_CURRENT_TEST", "GRPC_VERBOSITY", "PYDANTIC_DISABLE_PLUGINS")
"""Variables that pytest, and programs of Hearth that run in this process, may set."""
_NCCL = "NCCL_"
"""NCCL's variables: a GPU test that makes a `CudaServer` in this process sets them, as a device process does."""


def _surroundings() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in _FREE and not name.startswith(_NCCL)}


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    item.stash[_BEFORE] = (_surroundings(), Path.cwd())
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    """Fails a test that leaves the environment or the working directory changed, and restores them: every daemon that
    the worker starts later would be started by a fresh interpreter, at several times the cost of a fork."""
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
    parser.addoption("--quick", action="store_true", help="leaves out what tests/slow.txt lists")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--quick"):
        slow = set((Path(__file__).parent / "slow.txt").read_text().splitlines())
        out = [item for item in items if item.nodeid.partition("[")[0] in slow]
        config.hook.pytest_deselected(items=out)
        items[:] = [item for item in items if item.nodeid.partition("[")[0] not in slow]


_LONGEST_NAME = 60


def pytest_make_parametrize_id(config: object, val: object, argname: str) -> str | None:
    """Shortens a parameter's value in the test's name, which must not take tens of thousands of bytes of it."""
    if isinstance(val, bytes | str) and len(val) > _LONGEST_NAME:
        return f"{val[:_LONGEST_NAME]!r}... ({len(val)})"
    return None
