"""Dask distributes the work; each task uses the daemon of its worker."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.support.client.internals import session_of
from tests.support.daemon.harness import DaemonProcess, StartDaemon, environment

distributed = pytest.importorskip("distributed")


def where_and_what(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> tuple[str, str, float]:
    import hearth.dask

    node = hearth.dask.node()
    gpu = node.device(0)
    dot = gpu.RawKernel(
        'extern "C" __global__ void dot(const float* a, const float* b, float* out, int n) {'
        " float sum = 0; for (int i = 0; i < n; i++) sum += a[i] * b[i]; out[0] = sum; }",
        "dot",
    )
    out = gpu.zeros(1, np.float32)
    dot((1,), (1,), (gpu.asarray(a), gpu.asarray(b), out, np.int32(a.size)))
    return node.session_id, session_of(node).transport.target, float(out.get()[0])


@pytest.fixture
def unchanged_environment() -> Iterator[None]:
    """Restores the environment variables that Dask sets in the process that starts its workers."""
    before = dict(os.environ)
    yield
    for name in os.environ.keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)


@pytest.fixture
def cluster(unchanged_environment: None, start_daemon: StartDaemon) -> Iterator[tuple[Any, list[DaemonProcess]]]:
    """Two workers, as on two nodes: each has its own daemon."""
    daemons = [start_daemon(), start_daemon()]
    workers = {
        index: {"cls": distributed.Nanny, "options": {"nthreads": 2, "env": environment(HEARTH_TARGET=daemon.unix)}}
        for index, daemon in enumerate(daemons)
    }
    options = {"dashboard_address": None, "host": "127.0.0.1", "port": 0}
    scheduler = {"cls": distributed.Scheduler, "options": options}
    with (
        distributed.SpecCluster(workers=workers, scheduler=scheduler, silence_logs=50) as made,
        distributed.Client(made) as client,
    ):
        client.wait_for_workers(2, timeout=60)
        yield client, daemons


def test_each_task_has_the_daemon_of_its_worker(cluster: tuple[Any, list[DaemonProcess]]) -> None:
    import hearth.dask

    client, daemons = cluster
    names = list(client.scheduler_info()["workers"])
    a = np.arange(100, dtype=np.float32)
    with pytest.raises(hearth.UnsupportedError, match="no HearthPlugin"):
        client.submit(where_and_what, a, a, pure=False).result(60)
    with pytest.raises(hearth.UnsupportedError, match="only in tasks"):
        hearth.dask.node()

    client.register_plugin(hearth.dask.HearthPlugin(None))
    asked = [client.submit(where_and_what, a, a, workers=[names[i % 2]], pure=False) for i in range(8)]
    answers = client.gather(asked)
    assert {each[2] for each in answers} == {float((a * a).sum())}
    assert {each[1] for each in answers} == {daemon.unix for daemon in daemons}
    assert len({each[0] for each in answers}) == 2, "one session a worker"
    sessions = [each["client"] for daemon in daemons for each in daemon.status()["sessions"]]
    assert len(sessions) == 2 and all(each.startswith("dask tcp://127.0.0.1:") for each in sessions)

    # A session that was ended is replaced; its worker notices at its next task.
    ended = daemons[0].status()["sessions"][0]["id"]
    with daemons[0].connect() as operator:
        operator.end_session(ended)
    again = client.gather([client.submit(where_and_what, a, a, workers=[name], pure=False) for name in names])
    assert {each[1] for each in again} == {daemon.unix for daemon in daemons} and ended not in {e[0] for e in again}

    client.unregister_worker_plugin(hearth.dask.NAME)
    assert not daemons[0].status()["sessions"] and not daemons[1].status()["sessions"]
    daemons[1].stop()
    with pytest.raises(hearth.ConnectError):
        client.register_plugin(hearth.dask.HearthPlugin(daemons[1].unix, timeout=1))
