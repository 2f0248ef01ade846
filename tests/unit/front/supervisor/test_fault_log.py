"""Recent history in the status document: throughput, faults, traces, memory by tenant."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from hearth_proto.frames import Frame, Kind
from hearthd.front.counters import DeviceTotals
from hearthd.front.rates import CURRENT_S, WINDOW_S, Rates
from hearthd.front.resources.tenant_memory import TenantMemory
from hearthd.front.sessions.recent_traces import (
    MAX_BYTES,
    MAX_TENANT_BYTES,
    MAX_TENANT_TRACES,
    RETENTION_S,
    RecentTrace,
    RecentTraces,
)
from hearthd.front.supervisor.exit_cause import ExitCause
from hearthd.front.supervisor.fault_log import MAX_FAULTS, RecentFaults, visible_to
from hearthd.front.supervisor.isolation import ALL_SESSIONS, WorkerKey
from hearthd.front.tenancy.tenants import Right, Tenant

ALICE = Tenant("alice", rights=frozenset({Right.READ}))
BOB = Tenant("bob", rights=frozenset({Right.READ}), devices=frozenset({1}))
OPERATOR = Tenant("operator")


# ---- throughput ----


def test_a_rate_is_that_of_the_last_seconds() -> None:
    rates = Rates()
    assert rates.per_second(0.0) == {}
    rates.sample(0.0, {"launches": 100})
    assert rates.per_second(0.0) == {}, "one sample gives no rate"
    rates.sample(2.0, {"launches": 300, "bytes": 50})
    assert rates.per_second(2.0) == {"launches": 100.0, "bytes": 25.0}
    for second in range(4, 40, 2):  # the counters stop
        rates.sample(float(second), {"launches": 300, "bytes": 50})
    assert rates.per_second(38.0) == {"launches": 0.0, "bytes": 0.0}


def test_window_does_not_depend_on_the_rate_of_sampling() -> None:
    rates = Rates()
    for step in range(3000):  # a hundred samples per second
        rates.sample(step / 100, {"n": step})
    assert rates.per_second(29.99)["n"] == pytest.approx(100)
    times = [time for time, _ in rates.samples]
    assert len(times) < 40 and times[-1] - times[0] == pytest.approx(WINDOW_S, abs=1)


def test_rates_of_a_silent_device_decay() -> None:
    rates = Rates()
    rates.sample(0.0, {"n": 0})
    rates.sample(2.0, {"n": 100})
    assert rates.per_second(2.0 + CURRENT_S / 2) == {"n": 50.0}
    assert rates.per_second(20.0) == {"n": 5.0}


def test_counts_of_ended_processes_are_included() -> None:
    totals = DeviceTotals()
    totals.observe(1, {"counters": {"launches": 5}})
    totals.observe(2, {"counters": {"launches": 7, "other": 1}})
    assert totals.sums(("launches", "absent")) == {"launches": 12, "absent": 0}
    totals.add_final(1)
    assert totals.sums(("launches",)) == {"launches": 12}


# ---- faults ----


def lost(
    label: str = "fault", text: str = "kernel secret ran too long", kernels: tuple[str, ...] = ("secret",)
) -> ExitCause:
    return ExitCause(label, text, kernels)


def test_faults_of_own_and_shared_processes_are_visible() -> None:
    faults = RecentFaults(0)
    faults.add(lost(text="device 0 was lost: kernel secret ran too long"), 1, WorkerKey("alice"), {"s1": "alice"})
    [mine] = visible_to(ALICE, [faults])
    assert mine.pop("time_unix") > 1e9
    assert mine == {
        "device": 0, "generation": 1, "reason": "fault", "detail": "kernel secret ran too long", "kernels": ["secret"],
        "tenant": "alice", "sessions": [{"id": "s1", "tenant": "alice"}],
    }  # fmt: skip
    assert visible_to(BOB, [faults]) == [] and len(visible_to(OPERATOR, [faults])) == 1


@pytest.mark.parametrize(("involved", "readable"), [({"bob"}, True), ({"alice"}, False), ({"alice", "bob"}, False),
                                                ({"bob", ""}, False), (set(), False)])  # fmt: skip
def test_kernels_of_others_in_a_shared_process_are_not_readable(involved: set[str], readable: bool) -> None:
    faults = RecentFaults(0)
    faults.add(lost(), 3, ALL_SESSIONS, {f"of {tenant}": tenant for tenant in involved})
    [seen] = visible_to(BOB, [faults])
    assert seen["sessions"] == [{"id": "of bob", "tenant": "bob"}][: "bob" in involved]
    assert len(visible_to(OPERATOR, [faults])[0]["sessions"]) == len(involved)
    assert ("secret" in str(seen)) is readable and seen["generation"] == 3
    assert "secret" in str(visible_to(OPERATOR, [faults]))
    faults.add(lost("signal", "its process was killed by SIGSEGV", ()), 4, None, {})
    assert "SIGSEGV" in visible_to(BOB, [faults])[0]["detail"], "the signal reveals nothing about other tenants"


def test_faults_are_bounded_and_the_newest_is_listed_first() -> None:
    one, other = RecentFaults(0), RecentFaults(1)
    for number in range(100):
        (one if number % 2 else other).add(lost(text="x" * 10_000, kernels=("k" * 999,) * 99), number, ALL_SESSIONS, {})
    seen = visible_to(OPERATOR, [one, other])
    assert len(seen) == MAX_FAULTS and len(list(one)) == MAX_FAULTS
    assert seen[0]["generation"] in (98, 99)
    assert len(json.dumps(seen)) < MAX_FAULTS * 5000


# ---- memory ----


def test_memory_by_tenant() -> None:
    memory = TenantMemory()
    memory.on_report(1, {"tenants": {"alice": 9}})  # a process that has no tenant yet
    assert memory.by_tenant() == {}
    memory.set_tenant(1, "alice")
    memory.on_report(1, {"tenants": {"alice": 9, "bob": 1}})
    assert memory.by_tenant() == {"alice": 10}, "the memory counts for the tenant of the process, whatever it reports"
    memory.set_tenant(2, "")
    memory.on_report(2, {"tenants": {"alice": 1, "bob": 90, "idle": 0, "odd": -1, "bool": True, "text": "5"}})
    assert list(memory.by_tenant().items()) == [("bob", 90), ("alice", 11)]
    for junk in ({}, {"tenants": None}, {"tenants": [1]}, {"tenants": 5}):
        memory.on_report(2, junk)
    assert memory.by_tenant() == {"alice": 10}
    memory.remove_process(1)
    assert memory.by_tenant() == {}


# ---- traces ----


def trace(number: int, tenant: str = "alice", size: int = 10, device: int = 0, since: float = 0.0) -> RecentTrace:
    return RecentTrace(f"id{number}", device, "s", tenant, 1, 1e9, 0.5, b"x" * size, since)


def test_a_tenant_finds_its_own_traces_only() -> None:
    traces = RecentTraces(lambda _: None, lambda: 0.0)
    for number, (tenant, device) in enumerate((("alice", 0), ("bob", 0), ("bob", 1))):
        traces.add(trace(number, tenant, device=device))
    assert [each["id"] for each in traces.visible_to(OPERATOR)] == ["id2", "id1", "id0"]
    assert [each["id"] for each in traces.visible_to(ALICE)] == ["id0"]
    assert [each["id"] for each in traces.visible_to(BOB)] == ["id2"], "device 0 does not exist for it"
    assert traces.find("id0", ALICE) and not traces.find("id0", BOB) and not traces.find("nothing", OPERATOR)
    assert set(traces.visible_to(ALICE)[0]) == {
        "id", "device", "session", "tenant", "events", "started_unix", "seconds"
    }  # fmt: skip


def test_traces_are_bounded_by_tenant_and_in_total() -> None:
    now = itertools.count()
    traces = RecentTraces(lambda _: None, lambda: float(next(now)))
    traces.add(trace(-1, "bob"))
    for number in range(20):
        traces.add(trace(number))
    assert (
        len(traces.visible_to(ALICE)) == MAX_TENANT_TRACES and len(traces.visible_to(OPERATOR)) == MAX_TENANT_TRACES + 1
    )
    traces.add(trace(50, size=MAX_TENANT_BYTES - 5))
    assert [each["id"] for each in traces.visible_to(ALICE)] == ["id50"]
    traces.add(trace(51, size=MAX_TENANT_BYTES + 1))
    assert traces.find("id50", ALICE) and not traces.find("id51", ALICE)
    for number in range(100, 120):
        traces.add(trace(number, f"tenant{number}", size=MAX_TENANT_BYTES // 2))
    kept = [traces.find(each["id"], OPERATOR) for each in traces.visible_to(OPERATOR)]
    assert sum(len(each.packed) for each in kept if each) <= MAX_BYTES
    assert traces.find("id119", OPERATOR) and traces.find("id-1", OPERATOR), (
        "the largest tenants' traces are removed first"
    )


def test_traces_expire() -> None:
    now = [0.0]
    traces = RecentTraces(lambda _: None, lambda: now[0])
    traces.add(trace(1))
    now[0] = RETENTION_S + 1
    assert traces.find("id1", ALICE) is None and traces.visible_to(ALICE) == []


def frame(body: bytes, channel: int = 7) -> Frame:
    return Frame(Kind.TRACED, 0, channel, 0, body)


def test_owner_of_a_trace_is_decided_by_the_front() -> None:
    session: Any = SimpleNamespace(id="s1", tenant=ALICE)
    listeners: dict[int, Callable[[Frame], None]] = {}
    link: Any = SimpleNamespace(ordinal=1, channels={7: SimpleNamespace(session_id="s1")}, listen=listeners.__setitem__)
    traces = RecentTraces({"s1": session}.get)
    asyncio.run(traces.watch(link))
    traced = listeners[Kind.TRACED]
    good = {"events": 3, "epoch_ns": 10**18, "lasted_ns": 5 * 10**8, "tenant": "bob"}
    traced(frame(json.dumps(good).encode() + b"\npacked\nbytes"))
    traced(frame(json.dumps(good).encode() + b"\nx", channel=8))
    [entry] = traces.visible_to(OPERATOR)
    kept = traces.find(entry["id"], ALICE)
    assert kept is not None and kept.packed == b"packed\nbytes" and len(kept.id) >= 20
    assert (entry["tenant"], entry["session"], entry["device"], entry["seconds"]) == ("alice", "s1", 1, 0.5)
    for bad in (b"", b"[]\n", b"{}\n", b'{"events": 1}\n', b'{"events": true, "epoch_ns": 1, "lasted_ns": 1}\n',
                b'{"events": 1, "epoch_ns": NaN, "lasted_ns": 1}\n',
                b'{"events": -1, "epoch_ns": 1, "lasted_ns": 1}\n'):  # fmt: skip
        with pytest.raises(ValueError):
            traced(frame(bad))
    assert len(traces.visible_to(OPERATOR)) == 1
