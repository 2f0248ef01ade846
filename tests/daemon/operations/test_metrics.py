"""The metrics page: its values for sessions and tenants, access to it, and its cost."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import grpc
import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

import hearth
from hearth_proto.v1 import node_pb2, node_pb2_grpc
from tests.support.daemon.harness import DaemonProcess, StartDaemon, processor_seconds, wait_until
from tests.support.daemon.kernels import saxpy_works
from tests.support.daemon.tenants import tenant, tenants

SESSIONS = 200
ENOUGH_S = 0.1


def value(daemon: DaemonProcess, name: str, token: str = "", **labels: str) -> float | None:
    """Returns the value of the sample with these labels; None if there is none."""
    for family in text_string_to_metric_families(daemon.get("/metrics", token).body):
        for sample in family.samples:
            if sample.name == f"hearth_{name}" and labels.items() <= sample.labels.items():
                return float(sample.value)
    return None


def test_ended_sessions_are_counted_by_reason(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(sessions={"lease": "1s"})

    def ended(reason: str) -> float:
        return value(daemon, "sessions_closed_total", reason=reason) or 0.0

    with daemon.connect() as operator:
        daemon.connect().close()
        assert ended("client") == 1
        with contextlib.ExitStack() as stack:
            victim = stack.enter_context(daemon.connect())
            operator.end_session(victim.session_id)
            stack.pop_all()  # the session cannot be closed again
        assert ended("operator") == 1
        with grpc.insecure_channel(daemon.unix) as channel:
            node_pb2_grpc.NodeServiceStub(channel).OpenSession(node_pb2.OpenSessionRequest(client_name="gone"))
        wait_until(lambda: ended("lease") == 1, "the lease of a client that is gone")
        assert value(daemon, "sessions_opened_total") == 4 and value(daemon, "sessions_connected") in (0, 1)
        assert ended("client") == 1 and ended("stop") == ended("credential") == 0


def test_sessions_that_are_used_and_closed_leave_no_error(start_daemon: StartDaemon) -> None:
    """Covers sessions over every kind of connection."""
    daemon = start_daemon()

    def errors() -> dict[str, float]:
        families = text_string_to_metric_families(daemon.get("/metrics").body)
        samples = [sample for family in families for sample in family.samples]
        found = {
            f"{each.labels['grpc_method']} {each.labels.get('grpc_code') or each.labels['reason']}": each.value
            for each in samples
            if each.name in ("grpc_server_handled_total", "hearth_call_refusals_total") and each.value
        }
        return {name: count for name, count in found.items() if not name.endswith(" OK")}

    def handled() -> float:
        return sum(
            sample.value
            for family in text_string_to_metric_families(daemon.get("/metrics").body)
            for sample in family.samples
            if sample.name == "grpc_server_handled_total" and sample.labels["grpc_method"] == "Execute"
        )

    ways: list[tuple[str, bool]] = [(daemon.unix, True), (daemon.unix, False), (daemon.grpc, True)]
    for number, (target, lanes) in enumerate(ways * 2, 1):
        node = hearth.connect(target, lanes=lanes)
        gpu = node.device(0)
        saxpy_works(gpu)
        host = np.arange(9 << 20, dtype=np.uint8)
        assert (gpu.asarray(host).get() == host).all()
        node.close()
        wait_until(lambda number=number: handled() == number, "the end of the stream")
    assert not errors()


def test_quota_metrics_are_visible_to_their_tenant_and_operators(start_daemon: StartDaemon) -> None:
    config, tokens = tenants(
        tenant("small", quotas={"sessions": 1, "device_bytes": "1MiB"}, devices=[0], rights=["allocate", "read"]),
        tenant("operator", rights=["admin"]), "other",
    )  # fmt: skip
    daemon = start_daemon(2, **config)
    operator, small, other = (tokens[name] for name in ("operator", "small", "other"))
    with daemon.connect(token=small) as node, daemon.connect(token=other):
        with pytest.raises(hearth.QuotaExceededError):
            daemon.connect(token=small)
        gpu = node.device(0)
        held = gpu.empty(1 << 20, "uint8")
        too_much = gpu.empty(1 << 20, "uint8")
        with pytest.raises(hearth.QuotaExceededError):
            gpu.synchronize()
        del held, too_much
        assert value(daemon, "tenant_quota_refusals_total", operator, tenant="small", quota="sessions") == 1
        refused = value(daemon, "quota_refusals_total", operator, tenant="small", quota="device_bytes")
        assert refused and value(daemon, "command_failures_total", operator, reason="QUOTA_EXCEEDED") == refused
        assert value(daemon, "tenant_device_memory_limit_bytes", operator, tenant="small") == 1 << 20
        shared = value(daemon, "tenant_device_memory_limit_bytes", operator, tenant="other")
        assert shared and shared > 1 << 20, "7/8 of the device"
        assert value(daemon, "tenant_sessions_limit", small, tenant="small") == 1
        page = daemon.get("/metrics", small).body
        assert 'tenant="other"' not in page and 'device="1"' not in page, "they do not exist for it"
        page = daemon.get("/metrics", operator).body
        assert all(f'device="{ordinal}"' in page for ordinal in daemon.ordinals())


def test_a_tenant_sees_its_own_share_and_an_observer_all(start_daemon: StartDaemon) -> None:
    """The work of other tenants on a device cannot be computed as the difference between totals and one's own share."""
    config, tokens = tenants("mine", "other", tenant("watch", rights=["observe"]))
    daemon = start_daemon(**config)
    with daemon.connect(token=tokens["mine"]) as mine, daemon.connect(token=tokens["other"]) as other:
        for node, times in ((mine, 1), (other, 7)):
            arrays = [node.device(0).zeros(1 << 10, "float32") for _ in range(times)]
            assert len([array.get() for array in arrays]) == times

        def device(who: str) -> dict[str, Any]:
            document = json.loads(daemon.get("/status", tokens[who]).body)
            found: dict[str, Any] = document["devices"][0]
            return found

        def fills(who: str) -> float:
            return float(device(who)["counters"].get("fills", 0))

        wait_until(lambda: fills("watch") == 8, "the counters of both")
        assert (fills("mine"), fills("other")) == (1, 7)
        assert device("mine")["gauges"]["sessions"] == 1 and device("watch")["gauges"]["sessions"] == 2
        for name in ("commands_per_second", "busy_ratio"):
            assert device("mine")["throughput"][name] is None and device("watch")["throughput"][name] is not None
        assert device("mine")["pid"] != device("other")["pid"] and device("mine")["restarts"] == {}
        families = {each.name for each in text_string_to_metric_families(daemon.get("/metrics", tokens["mine"]).body)}
        assert "hearth_fills" in families and "hearth_device_up" in families and "hearth_build_info" in families
        hidden = {"hearth_sessions", "grpc_server_handled", "hearth_device_restarts", "process_cpu_seconds"}
        seen = {each.name for each in text_string_to_metric_families(daemon.get("/metrics", tokens["watch"]).body)}
        assert not families & hidden and hidden <= seen
        assert value(daemon, "fills_total", tokens["watch"], tenant="other") == 7


def test_a_page_costs_little_with_many_sessions(start_daemon: StartDaemon) -> None:
    """The limit is on the front's processor time."""
    daemon = start_daemon(cpu_count=2)
    with grpc.insecure_channel(daemon.unix) as channel:
        stub = node_pb2_grpc.NodeServiceStub(channel)
        calls = [stub.OpenSession.future(node_pb2.OpenSessionRequest(client_name="idle")) for _ in range(SESSIONS)]
        assert all(call.result().session_id for call in calls)

        used = processor_seconds(daemon.process.pid)
        for _ in range(10):
            page = daemon.get("/metrics")
            assert page.status == 200 and f"hearth_sessions {SESSIONS}.0" in page.body
        assert processor_seconds(daemon.process.pid) - used < 10 * ENOUGH_S
