"""Limits that all tenants share: sessions, device processes, handles, names of published buffers."""

from __future__ import annotations

from contextlib import ExitStack

import grpc
import numpy as np
import pytest

import hearth
from hearth_proto.v1 import commands_pb2 as c
from tests.support.daemon.harness import StartDaemon
from tests.support.daemon.raw import Raw, refusal_of, refused
from tests.support.daemon.tenants import tenant, tenants


def metric(page: str, name: str, **labels: str) -> float:
    wanted = f"{name}{{{','.join(f'{key}={value!r}' for key, value in sorted(labels.items()))}}} ".replace("'", '"')
    return float(next((line.split()[-1] for line in page.splitlines() if line.startswith(wanted)), 0.0))


def test_sessions_of_one_tenant_leave_room_for_others(start_daemon: StartDaemon) -> None:
    config, tokens = tenants("a", "b", tenant("operator", rights=["admin"]), sessions={"max": 16})
    daemon = start_daemon(**config)
    with ExitStack() as stack:

        def open_all(name: str) -> int:
            for number in range(20):
                try:
                    stack.enter_context(Raw(daemon.unix, tokens[name]))
                except grpc.RpcError as error:
                    refusal = refusal_of(error)
                    assert refusal.reason == "SESSION_LIMIT" and f"Tenant '{name}'" in refusal.message and refusal.fix
                    return number
            raise AssertionError("no limit")

        assert open_all("a") < 10 and open_all("b") >= 2
        with daemon.connect(token=tokens["operator"]) as operator:
            assert len(operator.sessions()) > 8
    page = daemon.get("/metrics", tokens["operator"]).body
    assert metric(page, "hearth_tenant_quota_refusals_total", tenant="a", quota="sessions_share") >= 1
    assert daemon.log().count("session_share_taken") == 2, "a line for each tenant, not for each refusal"


def test_device_processes_of_one_tenant_leave_room_for_others(start_daemon: StartDaemon) -> None:
    config, tokens = tenants("a", "b", tenant("operator", rights=["admin"]), devices={"max_processes": 4})
    daemon = start_daemon(**config)
    with ExitStack() as stack:

        def works(name: str) -> None:
            options = {"token": tokens[name], "isolation": "dedicated", "timeout": 15.0}
            node = stack.enter_context(daemon.connect(**options))
            node.device(0).zeros(4, np.int32).get()

        with pytest.raises(hearth.HearthError, match="its share of 4") as caught:
            for _ in range(5):
                works("a")
        assert caught.value.reason == "DEVICE_UNAVAILABLE"
        works("b")
    assert (
        metric(
            daemon.get("/metrics", tokens["operator"]).body,
            "hearth_tenant_process_refusals_total",
            device="0",
            tenant="a",
        )
        >= 1
    )


def test_handles_are_bounded_by_name(start_daemon: StartDaemon) -> None:
    """Handles are created one by one, many in one command, and over several sessions; freed ones can be allocated
    again."""
    operator = tenant("operator", rights=["admin"])
    config, tokens = tenants("a", tenant("b", quotas={"handles": 40}), operator, limits={"max_handles": 64})
    daemon = start_daemon(**config)
    with Raw(daemon.unix, tokens["a"]) as raw, raw.execute() as stream:
        made = [stream.ask(c.Command(allocate=c.Allocate(buffer=n, size=4))).HasField("error") for n in range(1, 70)]
        assert made.index(True) == 63, "the session's default stream counts as well"  # fmt: skip
        refusal = refused(raw.call, "Allocate", c.Allocate(buffer=99, size=0))
        assert refusal.reason == "QUOTA_EXCEEDED" and refusal.details["quota"] == "handles"
        assert "limits.max_handles" in refusal.message and refusal.details["allowed"] == "64"
        parts = [c.Allocate.Part(buffer=n, size=1) for n in range(1000, 1065)]
        assert stream.ask(c.Command(allocate=c.Allocate(parts=parts))).HasField("error")
        assert not stream.ask(c.Command(free=c.Free(buffers=[1]))).HasField("error")
        assert not stream.ask(c.Command(create_stream=c.CreateStream(stream=5))).HasField("error")
    with daemon.connect(token=tokens["b"]) as one, daemon.connect(token=tokens["b"]) as two:
        kept = [one.device(0).empty(1) for _ in range(20)]
        one.device(0).synchronize()
        with pytest.raises(hearth.HearthError, match=r"tenant b has .*quotas\.handles"):
            kept += [two.device(0).empty(1) for _ in range(25)]
            two.device(0).synchronize()
    assert 'quota="handles"' in daemon.get("/metrics", tokens["operator"]).body


def test_names_of_published_buffers_are_bounded(start_daemon: StartDaemon) -> None:
    config, tokens = tenants(tenant("a", quotas={"published": 2}), tenant("b", quotas={"published": "none"}))
    daemon = start_daemon(**config)
    with daemon.connect(token=tokens["a"]) as a, daemon.connect(token=tokens["b"]) as b:
        for number in range(2):
            a.device(0).ones(1).publish(f"x{number}")
        with pytest.raises(hearth.HearthError, match="2 buffers of tenant a"):
            a.device(0).ones(1).publish("x2")
        for number in range(3):
            b.device(0).ones(1).publish(f"y{number}")
