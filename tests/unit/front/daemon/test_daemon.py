"""Periodic work of a daemon, without a client's call."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from hearthd.front.daemon import daemon
from tests.support.front.fixture import front, run, until


def test_leases_end_while_there_is_no_free_descriptor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failures = 0

    def fail() -> float:
        nonlocal failures
        failures += 1
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(daemon, "own_memory", fail)

    async def scenario() -> None:
        async with front(tmp_path, devices=1, sessions__lease="100ms") as f:
            await until(lambda: failures)
            await f.open()
            await until(lambda: not len(f.daemon.sessions))

    run(scenario())
