"""Loads that wait for another session's kernel: refused within the time limit, with the kernel's name, and without
leftovers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from hearth_proto.frames import Kind
from hearth_proto.launches import LayoutEntry, Record, pack, pack_layout
from hearth_proto.reasons import Reason, Refusal, from_status
from hearth_proto.v1 import commands_pb2 as c
from hearthd.shared.device_spec import DeviceSpec
from tests.support.device.rig import Rig, compiled
from tests.support.device.strict import SOURCE, Strict, endless, launch, load, other, ready

LIMIT = 0.1
LONG = 3600.0
Start = Callable[[float], Rig[Strict]]


class Choosy(Strict):
    """A server that makes a launch wait for all running kernels unless the function's local memory has been provided,
    as a GPU does for some kernels."""

    def __init__(self, spec: DeviceSpec) -> None:
        super().__init__(spec)
        self.choosy = False
        self.fails = False
        self.provided: set[Any] = set()
        self.blocked: list[str] = []
        """Kernels that waited for a running one in the driver, which would have blocked the process."""

    def launch(self, function: Any, grid: Any, block: Any, shared: int, stream: Any, *rest: Any) -> None:
        if self.running and not self.has_launch_memory(function, False):
            self.blocked.append(function.name)
        super().launch(function, grid, block, shared, stream, *rest)

    def has_launch_memory(self, function: Any, prints: bool) -> bool:
        return not self.choosy or function in self.provided

    def provide_launch_memory(self, function: Any, prints: bool) -> None:
        if self.running:
            self.blocked.append(function.name)
        if self.fails:
            raise Refusal(Reason.OUT_OF_MEMORY, "no local memory")
        self.provided.add(function)


@pytest.fixture
def start() -> Iterator[Start]:
    made: list[Rig[Strict]] = []

    def begin(limit: float) -> Rig[Strict]:
        made.append(Rig(DeviceSpec(0, "cpu", 0, load_timeout=limit, cache_dir=compiled()), Choosy))
        return made[-1]

    yield begin
    for rig in made:
        rig.server.gate.set()
        rig.close()
        assert rig.server.blocked == []  # type: ignore[attr-defined]


def packed(function: int, buffer: int, stream: int) -> c.Command:
    """Returns a packed launch, as clients send it; a launch that has been checked before is not checked again."""
    layout = pack_layout([LayoutEntry(0, 8, pointer=True)])
    return c.Command(
        launches=pack(Record(function, stream, (1, 1, 1), (1, 1, 1), 0, 0, 0, layout, (buffer,), bytes(8)))
    )


def dispatch(binding: c.Binding, iterations: int = 1) -> c.Dispatch:
    """Returns a dispatch of the kernel `add_one`, which adds `iterations` to an array."""
    one = c.Dim3(x=1, y=1, z=1)
    return c.Dispatch(function=1, grid=one, block=one, bindings=[binding], iterations=iterations, timed=True)


SEVEN = c.Binding(role=c.Binding.ROLE_INPUT_OUTPUT, size=4, data=(7).to_bytes(4, "little"))
# Without an upload, nothing of the dispatch begins before the launch.
PERSISTENT = c.Binding(role=c.Binding.ROLE_VALUE, value=c.Argument(pointer=c.Argument.Pointer(buffer=2)))


def refused(result: c.Result) -> Refusal:
    refusal = from_status(result.error)
    assert refusal.reason is Reason.QUEUE_FULL, refusal
    return refusal


def counter(rig: Rig[Strict], name: str) -> int:
    rig.send(Kind.STATS, id=78)
    return int(json.loads(rig.until(Kind.STATS, 78).payload)["counters"][name])


def test_commands_of_a_refused_module_fail_with_the_refusal(start: Start) -> None:
    rig = start(LIMIT)
    value = endless(rig)
    load(rig, 2, b"another")
    refusal = refused(rig.answer(ready(rig, 2)))
    assert "load of module 2" in refusal.message and "kernel add_one of session other" in refusal.message
    assert refusal.details["sessions"] == "other" and refusal.retry_after_s
    rig.batch(launch(2, 1))
    asked = [
        rig.start(get_global=c.GetGlobal(module=2, buffer=9, name="x")),
        rig.start(describe_function=c.DescribeFunction(function=2)),
        rig.start(occupancy=c.Occupancy(function=2, block=c.Dim3(x=1))),
        ready(rig, 2),
        rig.start(sync=c.Sync()),
    ]
    for each in asked:
        assert "load of module 2" in refused(rig.answer(each)).message
    assert rig.gauges()["loads_waiting"] == 0 and counter(rig, "loads_refused") == 1
    rig.batch(launch(1, 2, stream=5))  # loaded code still runs during the endless kernel
    while rig.server.running < 2:
        rig.gauges()
    rig.server.gate.set()
    # Until the process has noticed that the device is idle.
    while (result := rig.answer(ready(rig, 2))).HasField("error"):
        refused(result)
    rig.batch(launch(2, 2, stream=5))
    assert value(2) == 2


def test_later_request_for_a_refused_module_waits_again(start: Start) -> None:
    rig = start(LIMIT)
    rig.process.device.idle_work.retry_s = 2 * LIMIT
    endless(rig)
    load(rig, 2, b"another")
    while counter(rig, "loads_refused") < 3:
        refused(rig.answer(ready(rig, 2)))
    rig.process.device.idle_work.limit = 0.0
    while not rig.gauges()["loads_waiting"]:
        answer = ready(rig, 2)
    rig.server.gate.set()
    assert not rig.answer(answer).HasField("error")


def test_refused_and_unloaded_module_leaves_no_state(start: Start) -> None:
    rig = start(LIMIT)
    endless(rig)
    load(rig, 2, b"another")
    refused(rig.answer(ready(rig, 2)))
    rig.call(unload_module=c.UnloadModule(module=2))
    assert from_status(rig.answer(ready(rig, 2)).error).reason is Reason.INVALID_HANDLE
    assert rig.gauges()["loads_waiting"] == 0
    loaded = list(rig.server.loaded)
    rig.server.gate.set()
    load(rig, 2, b"another")
    assert not rig.answer(ready(rig, 2)).HasField("error") and rig.server.loaded == [*loaded, "load"]


def test_global_of_a_refused_module_is_available_later(start: Start) -> None:
    rig = start(LIMIT)
    endless(rig)
    code = SOURCE + b"__device__ int number = 7;"
    rig.batch(c.Command(load_module=c.LoadModule(module=2, kind=c.CODE_KIND_CUDA_CPP, code=code)))
    refused(rig.call(get_global=c.GetGlobal(module=2, buffer=8, name="number")))
    rig.server.gate.set()
    buffer = 9
    while (result := rig.call(get_global=c.GetGlobal(module=2, buffer=buffer, name="number"))).HasField("error"):
        refused(result)
        buffer += 1
    assert rig.call(read=c.Read(buffer=8, size=4)).read.data == (7).to_bytes(4, "little"), "also by the first handle"


@pytest.mark.parametrize("closed", [False, True])
@pytest.mark.parametrize("tenant", ["", "stranger"])
def test_refusal_names_kernels_of_the_same_tenant(start: Start, tenant: str, closed: bool) -> None:
    """The kernels of sessions of the same tenant are named, including those of a closed session."""
    rig = start(LIMIT)
    endless(rig, tenant)
    if closed:
        rig.send(Kind.CLOSE, channel=2)
    load(rig, 2, b"another")
    refusal = refused(rig.answer(ready(rig, 2)))
    told = f"{refusal} {refusal.details}"
    assert ("add_one" in told, "session other" in told) == ((False, False) if tenant else (True, True))
    assert ("another tenant's session" in told) is bool(tenant)


def test_waiting_load_is_listed_and_a_dropped_one_is_not(start: Start) -> None:
    rig = start(LONG)
    endless(rig)
    for number in (2, 3):
        load(rig, number, b"salt %d" % number)
    while rig.gauges()["loads_waiting"] < 2:
        pass
    assert rig.gauges()["load_wait_longest_ns"] > 0
    rig.batch(c.Command(unload_module=c.UnloadModule(module=2)))
    while rig.gauges()["loads_waiting"] > 1:
        pass
    loaded = list(rig.server.loaded)
    rig.send(Kind.CLOSE, channel=1)
    rig.until(Kind.CLOSED)
    gauges = rig.gauges()
    assert (gauges["loads_waiting"], gauges["load_wait_longest_ns"]) == (0, 0)
    assert not rig.process.device.tracks.held, "no launch is held back"
    rig.server.gate.set()
    other(
        rig,
        c.Command(load_module=c.LoadModule(module=3, kind=c.CODE_KIND_CUDA_CPP, code=SOURCE + b"// third")),
        c.Command(request=1, describe_module=c.DescribeModule(module=3)),
        seq=3,
    )
    rig.until(Kind.RESPONSE)
    assert rig.server.loaded == [*loaded, "unload", "load"], "neither of the two waiting loads was executed"
    rig.send(Kind.OPEN, b"{}", channel=1)


def test_a_shorter_limit_applies_to_waiting_loads(start: Start) -> None:
    rig = start(0.0)
    endless(rig)
    load(rig, 2, b"another")
    answer = ready(rig, 2)
    while not rig.gauges()["loads_waiting"]:
        pass
    news = {"log_level": "error", "log_format": "json", "launch_timeout": 0.0, "load_timeout": LIMIT}
    rig.send(Kind.CHANGE, json.dumps(news).encode())
    refused(rig.answer(answer))


def test_a_first_launch_that_must_wait_is_refused_and_may_be_retried(start: Start) -> None:
    rig = start(LIMIT)
    value = endless(rig)
    rig.server.choosy = True  # type: ignore[attr-defined]
    for _ in range(3):  # later launches have the same prospects as the first one, so they need not wait
        rig.batch(packed(1, 2, 5))
        refusal = refused(rig.call(stream=5, sync=c.Sync()))
        assert "first launch of add_one" in refusal.message and "add_one of session other" in refusal.message
        assert rig.server.running == 1
    rig.batch(c.Command(fill=c.Fill(buffer=2, size=4, pattern=b"\0")))
    rig.server.gate.set()
    while True:
        rig.batch(packed(1, 2, 5))
        done = rig.call(stream=5, sync=c.Sync())
        if not done.HasField("error"):
            break
        refused(done)  # the process has not noticed yet that the other kernel has ended
    assert value(2) == 1 and counter(rig, "loads_refused") == 1


@pytest.mark.parametrize(
    "command", [{"launch": launch(1, 2).launch}, {"dispatch": dispatch(PERSISTENT)}], ids=["launch", "dispatch"]
)
def test_cancelled_first_launch_leaves_the_next_one_waiting(start: Start, command: dict[str, Any]) -> None:
    """Otherwise the next launch would block the whole process in the driver."""
    rig = start(LONG)
    value = endless(rig)
    rig.server.choosy = True  # type: ignore[attr-defined]
    given_up = rig.start(stream=5, **command)
    while not rig.gauges()["loads_waiting"]:
        pass
    rig.send(Kind.CANCEL, channel=1, id=given_up)
    assert from_status(rig.answer(given_up).error).reason is Reason.CANCELLED
    assert rig.gauges()["loads_waiting"] == 0
    rig.batch(packed(1, 2, 5))
    while not rig.gauges()["loads_waiting"]:
        assert rig.server.running == 1
    rig.server.gate.set()
    assert value(2) == 1


def test_launch_with_a_wrong_argument_is_refused_before_the_wait_for_an_idle_device(start: Start) -> None:
    rig = start(LONG)
    value = endless(rig)
    rig.server.choosy = True  # type: ignore[attr-defined]
    outside = packed(1, 2, 5)
    outside.launches = outside.launches[:-8] + (99).to_bytes(8, "little")
    rig.batch(outside)
    assert from_status(rig.call(stream=5, flush=c.Flush()).error).reason is Reason.OUT_OF_BOUNDS
    rig.batch(c.Command(fill=c.Fill(buffer=2, size=4, pattern=b"\0")), packed(1, 2, 5))
    while not rig.gauges()["loads_waiting"]:
        assert rig.server.running == 1
    rig.server.gate.set()
    assert value(2) == 1


@pytest.mark.parametrize("program", ["prepared list", "graph"])
def test_list_and_graph_wait_for_an_idle_device_before_they_run(start: Start, program: str) -> None:
    rig = start(LONG)
    value = endless(rig)
    rig.server.choosy = True  # type: ignore[attr-defined]
    if program == "graph":
        rig.batch(
            c.Command(stream=5, begin_capture=c.BeginCapture(graph=1)),
            packed(1, 2, 5),
            c.Command(stream=5, end_capture=c.EndCapture(graph=1)),
        )
        run = c.Command(stream=5, launch_graph=c.LaunchGraph(graph=1, count=1))
    else:
        rig.batch(c.Command(prepare=c.Prepare(prepared=1, launches=packed(1, 2, 5).launches)))
        run = c.Command(stream=5, launch_prepared=c.LaunchPrepared(prepared=1, count=1))
    rig.batch(run)
    while not rig.gauges()["loads_waiting"]:
        assert rig.server.running == 1
    rig.server.gate.set()
    assert value(2) == 1 and rig.gauges()["loads_waiting"] == 0


def test_list_whose_kernel_waits_too_long_is_refused(start: Start) -> None:
    rig = start(LIMIT)
    endless(rig)
    rig.server.choosy = True  # type: ignore[attr-defined]
    refusal = refused(rig.call(prepare=c.Prepare(prepared=1, launches=packed(1, 2, 5).launches)))
    assert "first launch of add_one" in refusal.message and "add_one of session other" in refusal.message
    assert rig.gauges()["loads_waiting"] == 0 and rig.server.running == 1


def test_first_launch_that_fails_leaves_the_next_one_waiting(start: Start) -> None:
    rig = start(LONG)
    value = endless(rig)
    rig.server.choosy = rig.server.fails = True  # type: ignore[attr-defined]
    rig.batch(packed(1, 2, 5))
    rig.server.gate.set()
    assert "no local memory" in rig.call(stream=5, sync=c.Sync()).error.message
    rig.server.gate.clear()
    rig.server.choosy = False  # type: ignore[attr-defined]
    other(rig, launch(1, 1), seq=3)
    while not rig.server.running:
        rig.gauges()
    rig.server.choosy, rig.server.fails = True, False  # type: ignore[attr-defined]
    rig.batch(c.Command(fill=c.Fill(buffer=2, size=4, pattern=b"\0")), packed(1, 2, 5))
    while not rig.gauges()["loads_waiting"]:
        assert rig.server.running == 1
    rig.server.gate.set()
    assert value(2) == 1


@pytest.mark.parametrize("kind", ["launch", "dispatch"])
def test_validated_first_launch_runs_on_the_idle_device(start: Start, kind: str) -> None:
    """The other session keeps launching, so that the device is idle only while nothing else may be launched."""
    rig = start(LONG)
    endless(rig)
    rig.server.choosy = True  # type: ignore[attr-defined]
    command = launch(1, 2).launch if kind == "launch" else dispatch(SEVEN)
    command.mode = c.LAUNCH_MODE_VALIDATE
    answer = rig.start(stream=5, **{kind: command})
    while not rig.gauges()["loads_waiting"]:
        pass
    for number in range(20):
        other(rig, launch(1, 1), seq=3 + number)
    rig.server.gate.set()
    assert not rig.answer(answer).HasField("error")


def test_launches_queued_after_the_same_first_launch_continue_with_it(start: Start) -> None:
    rig = start(LONG)
    value = endless(rig)
    rig.server.choosy = True  # type: ignore[attr-defined]
    rig.batch(launch(1, 1), launch(1, 2, stream=5))
    while rig.gauges()["loads_waiting"] < 2:
        pass
    rig.server.gate.set()
    assert [value(1), value(2)] == [1, 1] and rig.gauges()["loads_waiting"] == 0


@pytest.mark.parametrize("iterations", [1, 3])
def test_a_dispatch_waits_for_an_idle_device_before_the_first_launch(start: Start, iterations: int) -> None:
    rig = start(LONG)
    endless(rig)
    rig.server.choosy = True  # type: ignore[attr-defined]
    answer = rig.start(stream=5, dispatch=dispatch(SEVEN, iterations))
    while not rig.gauges()["loads_waiting"]:
        pass
    assert rig.server.running == 1
    rig.server.gate.set()
    result = rig.answer(answer).dispatch
    assert int.from_bytes(result.outputs[0], "little") == 7 + iterations
    assert result.kernel_ns and rig.gauges()["loads_waiting"] == 0


def test_a_dispatch_whose_first_launch_waits_too_long_is_refused(start: Start) -> None:
    rig = start(LIMIT)
    endless(rig)
    rig.server.choosy = True  # type: ignore[attr-defined]
    refusal = refused(rig.call(stream=5, dispatch=dispatch(SEVEN)))
    assert "first launch of add_one" in refusal.message and "add_one of session other" in refusal.message
    assert rig.gauges()["loads_waiting"] == 0 and rig.server.running == 1
