"""Device memory of a process: the limit, the requests to the front, and the callbacks that its answers call."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from hearth_proto.frames import Frame, Kind
from hearth_proto.reasons import Reason, Refusal
from hearthd.device.backend.resources import MemoryInfo
from hearthd.device.launch.watchdog import shorter_limit
from hearthd.device.resources.budget import over_quota
from hearthd.device.resources.grants import MemoryRequest, ProcessGrants
from hearthd.device.resources.staging import Staging
from hearthd.device.session.session import DeviceSession
from hearthd.device.streams.stream_pool import PooledStream
from hearthd.shared.device_spec import DeviceSpec

GRAIN = 10
TOTAL = 1000


class Server:
    """A pool that takes memory from the device in units of `GRAIN`, and returns unused memory when it is trimmed."""

    memory_grain = GRAIN

    def __init__(self) -> None:
        self.in_use = 0
        self.reserved = 0
        self.trims = 0
        self.fragmented = False
        """True if the unused memory is too fragmented for any allocation."""
        self.filled: list[tuple[int, bytes, int]] = []

    def allocate(self, size: int, stream: Any) -> Any:
        self.in_use += size
        if self.fragmented:
            self.reserved += -(-size // GRAIN) * GRAIN
        elif self.in_use > self.reserved:
            self.reserved = -(-self.in_use // GRAIN) * GRAIN
        return SimpleNamespace(address=self.in_use, size=size, reserved=size)

    def free(self, memory: Any, stream: Any) -> None:
        self.in_use -= memory.size

    def give(self, size: int) -> None:
        self.in_use -= size

    def trim(self) -> None:
        self.trims += 1
        self.reserved = -(-self.in_use // GRAIN) * GRAIN

    def memory_held(self) -> tuple[int, int]:
        return self.reserved, self.in_use

    def memory_info(self) -> MemoryInfo:
        return MemoryInfo(TOTAL - self.reserved, TOTAL, self.reserved, self.in_use)

    def fill(self, address: int, pattern: bytes, size: int, stream: Any) -> None:
        self.filled.append((address, pattern, size))


class Process:
    def __init__(self, granted: int | None, scrub: bool = False) -> None:
        self.server = Server()
        self.sent: list[tuple[int, dict[str, Any]]] = []
        outbox: Any = SimpleNamespace(put=lambda kind, payload, id=0: self.sent.append((id, json.loads(payload))))
        spec = DeviceSpec(0, "cpu", 0, memory_granted=granted, scrub=scrub)
        self.grants = ProcessGrants(spec, self.server, outbox)  # type: ignore[arg-type]

    def on_limit(self, limit: int, **more: Any) -> dict[str, Any]:
        """Sends a LIMIT from the front, and returns the answer."""
        payload = json.dumps({"bytes": limit, **more}).encode()
        before = len(self.sent)
        self.grants.on_limit(Frame(Kind.LIMIT, 0, 0, 7, payload))
        ident, answer = self.sent[before]
        assert ident == 7
        return answer

    def allocate(self, size: int) -> None:
        self.grants.allocate(size, None)

    def refused(self, size: int) -> Refusal:
        with pytest.raises(Refusal) as caught:
            self.allocate(size)
        return caught.value


def test_without_a_limit_no_request_is_sent() -> None:
    process = Process(None)
    process.allocate(5000)
    assert not process.sent and not process.server.trims and process.grants.limit is None


def test_beyond_the_limit_with_all_the_numbers() -> None:
    process = Process(100)
    process.allocate(95)
    refusal = process.refused(20)
    assert refusal.reason == Reason.OUT_OF_MEMORY and refusal.details["fits"] == "not now"
    numbers = [refusal.details[name] for name in ("granted", "requested", "in_use", "total")]
    assert numbers == ["100", "20", "95", "1000"]
    assert refusal.fix and process.server.trims == 1
    process.allocate(5)
    assert process.refused(TOTAL + 1).details["fits"] == "never"


def test_allocation_from_unused_pool_memory_needs_no_grant() -> None:
    process = Process(100)
    process.allocate(100)
    process.server.give(60)
    process.allocate(50)
    assert not process.server.trims
    process.server.give(50)
    process.allocate(61 - 1)
    assert process.server.reserved == 100


def test_pool_is_trimmed_before_a_refusal() -> None:
    process = Process(100)
    process.allocate(100)
    process.server.give(100)
    process.server.reserved = 100
    process.grants.limit = 90  # less than the process holds
    process.allocate(85)
    assert process.server.trims == 1


def test_fragmented_pool_returns_its_growth() -> None:
    process = Process(100)
    process.allocate(100)
    process.server.give(40)
    process.server.fragmented = True
    assert process.refused(30).details["granted"] == "100"
    assert process.server.memory_held() == (60, 60)
    process.on_limit(200)
    process.allocate(30)


def test_lower_limit_keeps_memory_in_use_and_reports_it() -> None:
    process = Process(None)
    process.allocate(300)
    process.server.give(100)
    assert process.on_limit(50) == {"limit": 200, "reserved": 200, "in_use": 200}
    assert process.grants.limit == 200 and process.server.trims == 1
    assert process.on_limit(500) == {"limit": 500, "reserved": 200, "in_use": 200}
    assert process.server.trims == 1, "there was no unused memory to return"


def test_a_request_is_answered_by_the_next_limit_and_others_wait_for_the_one_after() -> None:
    process = Process(100)
    heard: list[tuple[str, bool]] = []
    process.allocate(100)
    process.grants.request(15, lambda granted: heard.append(("first", granted)))
    assert process.sent.pop() == (0, {"wants": 20, "reserved": 100, "in_use": 100})
    process.grants.request(5, lambda granted: heard.append(("second", granted)))
    assert not process.sent, "one request at a time"
    process.on_limit(40)
    assert not heard, "a request to return memory is no answer"
    process.on_limit(40, denied=True)
    assert heard == [("first", False)]
    assert process.sent[-1] == (0, {"wants": 10, "reserved": 100, "in_use": 100}), "now for the second"
    process.grants.request(5, lambda granted: heard.append(("third", granted)))
    process.on_limit(200)
    assert heard[1:] == [("second", True), ("third", True)], "it may suffice for both: both retry"
    process.on_limit(200, denied=True)
    assert len(heard) == 3


def test_requests_that_callbacks_make_during_a_grant_are_all_answered() -> None:
    """Another allocation takes the granted room, so that both requests are made again by their callbacks."""
    process = Process(100)
    process.allocate(90)
    attempts: dict[int, int] = {20: 0, 30: 0}

    def attempt(size: int) -> None:
        attempts[size] += 1
        if attempts[size] < 3:
            process.grants.request(size, lambda granted: attempt(size))

    for size in attempts:
        attempt(size)
    assert [body["wants"] for _, body in process.sent] == [10]
    process.allocate(10)
    process.on_limit(110)
    process.on_limit(120)
    assert attempts == {20: 3, 30: 3}
    assert [body["wants"] for _, body in process.sent if "wants" in body] == [10, 10], "one request at a time"


def test_memory_request_continues_while_more_is_granted_and_ends_with_a_denial() -> None:
    process = Process(0)
    woken: list[None] = []
    plea = MemoryRequest(process.grants, lambda: woken.append(None))
    refusal = process.refused(30)
    assert plea.waits(refusal) and plea.waits(refusal) and len(process.sent) == 1
    process.on_limit(10)  # another request may have used the memory
    assert woken and plea.waits(process.refused(30))
    process.on_limit(10, denied=True)
    assert len(woken) == 2 and not plea.waits(process.refused(30))
    assert not MemoryRequest(process.grants, lambda: None).waits(over_quota(5, 4, 0)), (
        "the front could not grant memory"
    )


def test_a_quota_that_several_processes_share() -> None:
    process = Process(10)
    plea = MemoryRequest(process.grants, lambda: None)
    assert plea.waits(process.refused(30))
    process.on_limit(10, denied=True, quota=25)
    refusal = process.refused(30)
    assert refusal.reason == Reason.QUOTA_EXCEEDED and refusal.details["allowed"] == "25"
    assert not plea.waits(refusal)
    assert MemoryRequest(process.grants, lambda: None).waits(refusal), (
        "another allocation sends a new request, because the state may have changed"
    )
    process.on_limit(50)
    process.allocate(30)


def test_a_quota_below_the_pieces_of_the_pool_names_the_least() -> None:
    process = Process(0)
    assert MemoryRequest(process.grants, lambda: None).waits(process.refused(3))
    process.on_limit(0, denied=True, quota=5)
    refusal = process.refused(3)
    assert refusal.reason == Reason.QUOTA_EXCEEDED and refusal.details["fits"] == "never"
    assert f"quota to {GRAIN} bytes" in str(refusal.fix)


def test_memory_is_cleared_with_tenants() -> None:
    process = Process(None, scrub=True)
    process.allocate(30)
    process.allocate(0)
    assert process.server.filled == [(30, b"\0", 30)]
    bare = Process(None)
    bare.allocate(30)
    assert not bare.server.filled


@pytest.mark.parametrize(("requested", "default", "expected"), [(0, 0, 0), (5, 0, 5), (0, 3, 3), (5, 3, 3), (2, 3, 2)])
def test_a_session_may_request_less_time_than_the_daemon_allows(
    requested: float, default: float, expected: float
) -> None:
    assert shorter_limit(requested, default) == expected


# ---- host memory ----


def session(tenant: str, quota: int) -> DeviceSession:
    track = PooledStream(0, None, 0)
    return DeviceSession(1, {"tenant": tenant, "pinned_bytes": quota}, lambda *_: track)


def test_host_memory_of_a_tenant_is_bounded() -> None:
    server: Any = SimpleNamespace(
        allocate_host=lambda size: SimpleNamespace(size=size), free_host=lambda buffer: None,
        host_grown=lambda: False, host_refusal=lambda size: None,
    )  # fmt: skip
    server.allocate_host = Lent
    room: list[None] = []
    staging = Staging(server, 1000, SimpleNamespace(), lambda: room.append(None))  # type: ignore[arg-type]
    first_session, second_session, other_tenant = session("x", 100), session("x", 100), session("y", 0)
    first = staging.acquire(60, first_session)
    assert first is not None and staging.acquire(60, second_session) is None
    assert staging.acquire(600, other_tenant) is not None, "the quota of one tenant does not bind another"
    assert staging.acquire(40, second_session) is not None
    staging.release(first)
    assert room, "the waiting allocation is retried"
    second = staging.acquire(60, first_session)
    assert second is not None and first_session.bytes_pinned == 60
    staging.release(second)
    staging.release(second)
    assert first_session.bytes_pinned == 0


def test_copy_larger_than_the_quota_runs_alone() -> None:
    server: Any = SimpleNamespace(free_host=lambda buffer: None, host_grown=lambda: False, allocate_host=Lent)
    staging = Staging(server, 1000, SimpleNamespace(), lambda: None)  # type: ignore[arg-type]
    one = session("x", 100)
    large = staging.acquire(500, one)
    assert large is not None and staging.acquire(1, one) is None
    staging.release(large)
    assert staging.acquire(1, one) is not None


class Lent:
    def __init__(self, size: int) -> None:
        self.size = size


def test_grant_answers_a_request_even_if_the_pool_held_more() -> None:
    process = Process(100)
    process.allocate(100)
    process.server.in_use = process.server.reserved = 120  # beyond the limit: the freed memory has not returned yet
    assert process.on_limit(90)["limit"] == 120
    heard: list[bool] = []
    process.grants.request(15, heard.append)
    process.on_limit(110)
    assert not heard
    process.on_limit(110, granted=True)
    assert heard == [True]
