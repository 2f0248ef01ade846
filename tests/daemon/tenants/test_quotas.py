"""Quotas that the front enforces, with a real daemon: sessions, and device time as measured by device processes."""

from __future__ import annotations

import numpy as np
import pytest

import hearth
from hearth_proto.reasons import Reason
from hearth_proto.v1 import commands_pb2 as c
from tests.support.daemon.harness import StartDaemon, wait_until
from tests.support.daemon.kernels import COMMON
from tests.support.daemon.raw import Raw, refused
from tests.support.daemon.tenants import tenant, tenants


def test_sessions_beyond_the_quota_are_refused(start_daemon: StartDaemon) -> None:
    config, tokens = tenants(tenant("small", quotas={"sessions": 2}), "other")
    daemon = start_daemon(**config)
    first = daemon.connect(token=tokens["small"])
    with daemon.connect(token=tokens["small"]):
        with pytest.raises(hearth.QuotaExceededError, match="2 sessions open; the maximum is 2") as error:
            daemon.connect(token=tokens["small"])
        assert error.value.details == {"quota": "sessions", "used": "2", "allowed": "2"} and error.value.retry_after
        daemon.connect(token=tokens["other"]).close()
        first.close()
        daemon.connect(token=tokens["small"]).close()
    page = daemon.get("/metrics", daemon.observer).body
    assert 'hearth_tenant_sessions{tenant="small"} 0.0' in page


def test_device_time_quota_is_enforced(start_daemon: StartDaemon) -> None:
    """Device time is measured for each session and tenant. When it is used up, new work is refused, and existing data
    can still be read."""
    config, tokens = tenants(tenant("small", quotas={"gpu_seconds": "500ms"}), tenant("operator", rights=["admin"]))
    daemon = start_daemon(**config)
    with Raw(daemon.unix, tokens["small"]) as raw, daemon.connect(token=tokens["small"]) as node:
        kept = raw.buffer(b"kept")
        gpu = node.device(0)
        spin = gpu.RawModule(code=COMMON).get_function("spin")
        with daemon.connect(token=tokens["operator"]) as operator:

            def used() -> float:
                return {session.session_id: session.device_seconds for session in operator.sessions()}[node.session_id]

            spin((1,), (1,), (np.int64(100_000_000),))
            gpu.synchronize()
            some = wait_until(used, "time of the session")
            assert 0.0 < some < 0.5

            def exhausted() -> hearth.QuotaExceededError | None:
                try:
                    spin((1,), (1,), (np.int64(100_000_000),))
                    gpu.synchronize()
                except hearth.QuotaExceededError as error:
                    return error
                return None

            error = wait_until(exhausted, "the end of the quota", 40.0)
            assert error.details["quota"] == "gpu_seconds" and error.details["allowed"] == "0.5"
            assert float(error.details["used"]) >= 0.5 and used() >= 0.5
        for rpc, command in (
            ("Allocate", c.Allocate(buffer=9, size=4)),
            ("Fill", c.Fill(buffer=kept, size=4, pattern=b"1")),
        ):
            refusal = refused(raw.call, rpc, command)
            assert refusal.reason == Reason.QUOTA_EXCEEDED and refusal.details["quota"] == "gpu_seconds"
        assert raw.read(kept, 4) == b"kept"
        raw.call("Free", c.Free(buffers=[kept]))
        with pytest.raises(hearth.QuotaExceededError, match="GPU seconds"):
            daemon.connect(token=tokens["small"])
        line = next(
            line for line in daemon.get("/metrics", daemon.observer).body.splitlines()
            if line.startswith('hearth_tenant_device_seconds_total{tenant="small"}')
        )  # fmt: skip
        assert float(line.split()[-1]) >= 0.5
        (entry,) = [each for each in daemon.status()["tenants"] if each["name"] == "small"]
        assert entry["device_seconds"] >= 0.5 and entry["device_seconds_allowed"] == 0.5


def test_a_tenants_batches_wait_for_room(start_daemon: StartDaemon) -> None:
    """A quota of one command is sufficient: the tenant's sessions proceed one after another, and all work is done."""
    config, tokens = tenants(tenant("small", quotas={"queued_commands": 1, "queued_bytes": "4KiB"}))
    daemon = start_daemon(**config)
    with daemon.connect(token=tokens["small"]) as one, daemon.connect(token=tokens["small"]) as two:
        arrays = [node.device(0).zeros(64, np.int32) for node in (one, two) for _ in range(2)]
        kernels = [node.device(0).RawModule(code=COMMON).get_function("add_one") for node in (one, two)]
        for _ in range(50):
            for index, array in enumerate(arrays):
                kernels[index // 2]((1,), (64,), (array, np.int32(64)))
        for array in arrays:
            assert (array.get() == 50).all()
        (entry,) = daemon.status()["tenants"]
        assert entry["queued_commands"] == 0 and entry["queued_bytes"] == 0
