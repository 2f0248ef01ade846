"""The metrics page of a daemon that has used every feature: the metrics that queries and alert rules may name."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import signal
import socket
import tempfile
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trustme
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

import hearth
from hearthd.front.gpu.reading import RECOVERY, GpuReading
from hearthd.front.metrics import gpu
from tests.support.daemon.harness import BACKEND, DaemonProcess, wait_until
from tests.support.daemon.kernels import COMMON
from tests.support.daemon.tenants import tenant, tenants

OPENMETRICS = "application/openmetrics-text; version=1.0.0"
QUOTAS = {"device_bytes": "64MiB", "sessions": 3}
BOUNDS = {
    "pinned_bytes": "64MiB", "durable_bytes": "1MiB", "queued_commands": 100, "queued_bytes": "1MiB",
    "gpu_seconds": "1h",
}  # fmt: skip


def page() -> str:
    """Returns the page in Prometheus's text format."""
    return _pages()[""]


def page_of(accept: str) -> str:
    """Returns the page in the format `accept`."""
    return _pages()[accept]


@functools.cache
def _pages() -> dict[str, str]:
    """Returns the metrics pages by requested format. The daemon has ended when this returns."""
    if BACKEND != "cpu":
        pytest.skip("the faults of this test are for the CPU backend")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        authority = trustme.CA()
        issued = authority.issue_cert("localhost", "127.0.0.1")
        certificate, key = folder / "tls.pem", folder / "tls.key"
        certificate.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        key.touch(mode=0o600)
        key.write_bytes(issued.private_key_pem.bytes())
        config, tokens = tenants(
            tenant("team", quotas=QUOTAS), tenant("bounded", quotas=BOUNDS),
            tls={"certificate": str(certificate), "key": str(key)}, http={"metrics_on_loopback": True},
        )  # fmt: skip
        daemon = DaemonProcess(folder, config, 2)
        try:
            _work(daemon, tokens)
            return {accept: _get(daemon, accept) for accept in ("", OPENMETRICS)}
        finally:
            daemon.stop()
            leftovers = daemon.left_behind()
            daemon.remove()
            assert not leftovers


def _get(daemon: DaemonProcess, accept: str) -> str:
    request = urllib.request.Request(f"http://{daemon.http}/metrics", headers={"Accept": accept} if accept else {})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=10) as answer:
        kind = answer.headers["Content-Type"]
        assert kind.startswith("application/openmetrics-text" if accept else "text/plain; version="), kind
        body: bytes = answer.read()
        return body.decode()


def families(text: str) -> list[Metric]:
    return list(text_string_to_metric_families(text))


def full_name(family: Metric) -> str:
    """Returns the family's name as queries write it; for a histogram, without its suffixes."""
    return f"{family.name}_total" if family.type == "counter" else family.name


def gpu_families() -> list[Metric]:
    """Returns the metric families that a daemon without a GPU does not have, each with a sample."""
    absent = [field.name for field in dataclasses.fields(GpuReading) if field.default is None]
    values: dict[str, Any] = {**dict.fromkeys(absent, 1), "recovery": RECOVERY[0]}
    reading = GpuReading(**values, throttling={"sw_power_cap": True}, xids={13: 1})
    families_found = list(gpu.every_family({0: reading}))
    assert all(family.samples for family in families_found)
    return families_found


def names(text: str) -> set[str]:
    """Returns the names of all samples, as queries write them."""
    return {sample.name for family in text_string_to_metric_families(text) for sample in family.samples}


def labels(text: str) -> dict[str, set[str]]:
    """Returns the labels by the name of the sample."""
    names: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            names.setdefault(sample.name, set()).update(sample.labels)
    return names


def of_gpus() -> set[str]:
    """Returns the names, as queries write them, of the metrics that a daemon without a GPU does not have."""
    return {full_name(family) for family in gpu_families()}


def _work(daemon: DaemonProcess, tokens: dict[str, str]) -> None:
    with daemon.connect(token=tokens["team"]) as node:
        first, second = node.devices
        _launches(first)
        group = hearth.Group([first, second])
        arrays = [device.ones(4, np.float32) for device in (first, second)]
        group.all_reduce(arrays)
        group.synchronize()
        group.send(arrays[0], to=1, timeout=0.2)  # no rank receives it, so it fails
        _refused(hearth.CommunicatorError, first.synchronize)
        _refused(hearth.QuotaExceededError, lambda: (first.empty(1 << 30, np.uint8), first.synchronize()))
        _refused(hearth.LaunchError, lambda: (_kernel(first)((1,), (9999,), ()), first.synchronize()))
        with contextlib.ExitStack() as stack:
            more = [stack.enter_context(daemon.connect(token=tokens["team"])) for _ in range(2)]
            _refused(hearth.QuotaExceededError, lambda: daemon.connect(token=tokens["team"]))
            del more
        _refused(hearth.AuthenticationError, lambda: daemon.connect(token="wrong"))
        _no_lane(daemon)
        with daemon.connect(token=tokens["bounded"]) as bounded_node:
            bounded_node.device(0).ones(4, np.float32).get()
        _lose(daemon, second)


def _kernel(device: hearth.Device) -> Any:
    return device.RawModule(code=COMMON).get_function("saxpy")


def _launches(device: hearth.Device) -> None:
    saxpy, n = _kernel(device), 1024
    x, y = device.asarray(np.ones(n, np.float32)), device.zeros(n, np.float32)
    arguments = ((4,), (256,), (np.float32(2), x, y, np.int32(n)))
    saxpy(*arguments)
    y.copy_from(x)
    with device.graph() as graph:
        saxpy(*arguments)
    graph.launch(2)
    with device.prepared() as prepared:
        saxpy(*arguments)
    prepared.launch(2)
    with device.trace(), device.profile():
        saxpy(*arguments)
    device.dispatch(saxpy, 4, 256, ins=[], outs=[], scalars=[np.float32(2), x, y, np.int32(n)])
    big = device.asarray(np.ones(1 << 20, np.float32))
    assert big.get().sum() == 1 << 20 and y.get().shape == (n,)


def _refused(error: type[Exception], action: Callable[[], object]) -> None:
    with pytest.raises(error):
        action()


def _no_lane(daemon: DaemonProcess) -> None:
    """Opens a connection that presents no valid ticket."""
    host, port = daemon.lanes.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=10) as stranger:
        stranger.sendall(b"\xff" * 64)
        with contextlib.suppress(OSError):
            stranger.recv(1)


def _lose(daemon: DaemonProcess, device: hearth.Device) -> None:
    device.synchronize()
    status = daemon.status()["devices"][device.ordinal]
    (pid,) = [process["pid"] for process in status["processes"] if process["tenant"] == "team"]
    os.kill(pid, signal.SIGSEGV)
    wait_until(lambda: 'hearth_device_recovery_seconds_count{device="1"} 1.0' in daemon.get("/metrics").body, "another")
