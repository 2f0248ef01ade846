"""NVTX and CUPTI replaced by fakes: the calls that they get, and that their failures do not affect a command."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from hearthd.device.cuda import cupti as cupti_module
from hearthd.device.cuda.cupti import FORCED, KernelActivity, make_activity
from hearthd.device.cuda.nvtx import MAX_LABEL, Ranges, label, make_ranges


@dataclass
class Log:
    lines: list[str] = field(default_factory=list)

    def __call__(self, line: str) -> None:
        self.lines.append(line)


# ---- NVTX ----


def test_labels_are_printable_bounded_and_not_empty() -> None:
    assert label("launch saxpy") == "launch saxpy"
    assert label("a\0b\nc") == "a?b?c"
    assert label("") == "command"
    assert len(label("x" * 10_000)) == MAX_LABEL


def test_ranges_nest_and_a_push_that_failed_is_not_popped() -> None:
    depths = iter([0, -1, 1])
    popped: list[int] = []
    log = Log()
    ranges = Ranges(lambda name, number: next(depths), lambda: popped.append(1), log)
    for _ in range(3):
        ranges.push("launch f", 1)
    for expected in (1, 1, 2):  # the second push started no range
        ranges.pop()
        assert len(popped) == expected
    assert ranges.active and not log.lines


def test_failing_annotations_are_disabled_with_one_log_entry() -> None:
    log = Log()

    def broken(name: str, number: int) -> None:
        raise OSError("no tool")

    ranges = Ranges(broken, lambda: None, log)
    for _ in range(3):
        ranges.push("launch f", 1)
        ranges.pop()
    assert not ranges.active and len(log.lines) == 1 and "no tool" in log.lines[0]


def test_the_nvtx_package_is_preferred() -> None:
    calls: list[Any] = []

    def pop_range(domain: str) -> None:
        calls.append(domain)

    nvtx = SimpleNamespace(
        push_range=lambda name, domain, payload: calls.append((name, domain, payload)), pop_range=pop_range
    )
    ranges = make_ranges(Log(), {"nvtx": nvtx}.__getitem__)
    assert ranges is not None
    ranges.push("launch f", 7)
    ranges.pop()
    assert calls == [("launch f", "hearth", 7), "hearth"]


def test_cupys_binding_is_the_fallback() -> None:
    calls: list[Any] = []
    cupy = SimpleNamespace(available=True, RangePush=calls.append, RangePop=lambda: calls.append("pop"))

    def load(name: str) -> object:
        if name == "nvtx":
            raise ImportError("no nvtx")
        return cupy

    ranges = make_ranges(Log(), load)
    assert ranges is not None
    ranges.push("read", 1)
    ranges.pop()
    assert calls == ["read", "pop"]


@pytest.mark.parametrize("cupy", [None, SimpleNamespace(available=False), SimpleNamespace(available=True)])
def test_missing_nvtx_disables_ranges_with_a_warning(cupy: object) -> None:
    def load(name: str) -> object:
        if name == "nvtx" or cupy is None:
            raise ImportError(f"no {name}")
        return cupy

    log = Log()
    assert make_ranges(log, load) is None
    assert len(log.lines) == 1 and "no nvtx" in log.lines[0] and "install" in log.lines[0]


# ---- CUPTI ----


class FakeCupti:
    """The part of the cupti-python package that is used; `flush` delivers the records in `buffer`."""

    ActivityKind = SimpleNamespace(CONCURRENT_KERNEL=10, EXTERNAL_CORRELATION=39, DRIVER=4, RUNTIME=5)
    ExternalCorrelationKind = SimpleNamespace(CUSTOM0=3)

    def __init__(self) -> None:
        self.enabled: list[int] = []
        self.pushed: list[int] = []
        self.flushes: list[int] = []
        self.buffer: list[Any] = []

    def activity_register_callbacks(self, requested: Any, completed: Any) -> None:
        assert requested()[0] > 1 << 20
        self.completed = completed

    def activity_enable(self, kind: int) -> None:
        self.enabled.append(kind)

    def activity_disable(self, kind: int) -> None:
        self.enabled.remove(kind)

    def activity_push_external_correlation_id(self, kind: int, number: int) -> None:
        assert kind == 3
        self.pushed.append(number)

    def activity_pop_external_correlation_id(self, kind: int) -> int:
        return self.pushed.pop()

    def activity_flush_all(self, flag: int) -> None:
        self.flushes.append(flag)
        buffer, self.buffer = self.buffer, []
        self.completed(buffer)

    def get_timestamp(self) -> int:
        return 5_000_000

    # actions of the driver

    def launch(self, correlation: int, name: str, *starts: int, end: int = 1) -> None:
        """Records an API call and its kernels, under the number that was pushed."""
        for start in starts:
            self.buffer.append(
                SimpleNamespace(
                    kind=10, correlation_id=correlation, name=name, start=start, end=(start + 100) * end,
                    grid_x=4, grid_y=2, grid_z=1, block_x=256, block_y=1, block_z=1, registers_per_thread=24,
                    static_shared_memory=128, dynamic_shared_memory=64,
                )
            )  # fmt: skip
        if self.pushed:
            self.buffer.append(
                SimpleNamespace(kind=39, correlation_id=correlation, external_id=self.pushed[-1], external_kind=3)
            )


def test_kernels_are_assigned_to_the_commands_that_launched_them() -> None:
    cupti, log = FakeCupti(), Log()
    activity = KernelActivity(cupti, log)
    activity.push("launch before", 1)
    assert not cupti.enabled and not cupti.pushed, "no trace is active"
    activity.pop()
    trace = activity.start()
    assert cupti.enabled == [10, 39, 4, 5]
    activity.push("launch f", 11)
    cupti.launch(100, "f", 7_000_000)
    activity.pop()
    cupti.launch(101, "another session's", 7_100_000)
    activity.push("launch_graph", 12)
    cupti.launch(102, "g", 7_300_000, 7_200_000)
    activity.pop()
    activity.stop()
    assert not cupti.enabled
    kernels = activity.collect(trace, [11, 12])
    assert [(kernel.number, kernel.name) for kernel in kernels] == [(11, "f"), (12, "g"), (12, "g")]
    first, second, third = kernels
    assert first.ended_ns - first.started_ns == 100
    assert second.started_ns - first.started_ns == 200_000 and third.started_ns - first.started_ns == 300_000
    assert (first.grid, first.block, first.registers, first.shared_bytes) == ((4, 2, 1), (256, 1, 1), 24, 192)
    assert cupti.flushes == [FORCED]
    assert activity.collect(trace, [11, 12]) == [] and not log.lines


def launch(activity: KernelActivity, cupti: FakeCupti, number: int) -> None:
    """Launches the kernel of a command."""
    activity.push("launch", number)
    cupti.launch(number, f"kernel {number}", number * 1000)
    activity.pop()


def collect(activity: KernelActivity, trace: int, *numbers: int) -> list[str]:
    return [kernel.name for kernel in activity.collect(trace, numbers)]


def test_concurrent_traces_get_their_own_records() -> None:
    cupti = FakeCupti()
    activity = KernelActivity(cupti, Log())
    first, second = activity.start(), activity.start()
    for number in (1, 2):
        launch(activity, cupti, number)
    activity.stop()
    assert collect(activity, first, 1) == ["kernel 1"]
    assert cupti.flushes == [0] and cupti.enabled
    activity.stop()
    assert collect(activity, second, 2) == ["kernel 2"]
    assert cupti.flushes == [0, FORCED]


def test_traces_that_have_ended_are_collected_in_any_order() -> None:
    for order in ((0, 1), (1, 0)):
        cupti = FakeCupti()
        activity = KernelActivity(cupti, Log())
        traces = activity.start(), activity.start()
        for number in (1, 2):
            launch(activity, cupti, number)
        for _ in traces:
            activity.stop()
        for index in order:
            assert collect(activity, traces[index], index + 1) == [f"kernel {index + 1}"]


def test_a_trace_that_starts_while_another_is_collected_keeps_its_records() -> None:
    cupti = FakeCupti()
    activity = KernelActivity(cupti, Log())
    first = activity.start()
    launch(activity, cupti, 1)
    activity.stop()
    flush, later = cupti.activity_flush_all, []

    def flush_all(flag: int) -> None:
        flush(flag)
        cupti.activity_flush_all = flush  # type: ignore[method-assign]
        later.append(activity.start())
        launch(activity, cupti, 2)
        flush(0)

    cupti.activity_flush_all = flush_all  # type: ignore[method-assign]
    assert collect(activity, first, 1) == ["kernel 1"]
    activity.stop()
    assert collect(activity, later[0], 2) == ["kernel 2"]


def test_no_record_remains_when_its_trace_has_ended_though_another_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit on the number of records then never applies."""
    monkeypatch.setattr(cupti_module, "MAX_KERNELS", 2)
    cupti = FakeCupti()
    activity = KernelActivity(cupti, Log())
    trace = activity.start()
    for number in range(1, 30, 3):
        launch(activity, cupti, number)  # the trace is open, and the next one starts before it ends
        following, discarded = activity.start(), activity.start()
        activity.stop()
        assert collect(activity, trace, number) == [f"kernel {number}"]
        launch(activity, cupti, number + 1)
        cupti.activity_flush_all(0)
        activity.stop()
        activity.discard(discarded)
        trace = following


def test_kernel_whose_records_arrive_separately() -> None:
    cupti = FakeCupti()
    activity = KernelActivity(cupti, Log())
    trace, _ = activity.start(), activity.start()
    activity.push("launch", 5)
    cupti.launch(1, "late", 1000)
    activity.pop()
    kernel, external = cupti.buffer
    cupti.buffer = [kernel]
    activity.stop()
    cupti.activity_flush_all(0)
    cupti.buffer = [external]
    assert collect(activity, trace, 5) == ["late"]


def test_unfinished_kernels_are_omitted_and_bad_records_are_logged() -> None:
    cupti, log = FakeCupti(), Log()
    activity = KernelActivity(cupti, log)
    trace = activity.start()
    activity.push("launch", 5)
    cupti.launch(1, "running", 1000, end=0)
    activity.stop()
    assert activity.collect(trace, [5]) == []
    cupti.buffer = [SimpleNamespace(kind=10)]
    assert activity.collect(trace, [5]) == []
    assert len(log.lines) == 1 and "AttributeError" in log.lines[0]


@pytest.mark.parametrize(
    "error", [ImportError("no module named cupti"), OSError("libcupti.so.13"), RuntimeError("driver")]
)
def test_missing_cupti_disables_activity_with_a_reason(error: Exception) -> None:
    def load(name: str) -> Any:
        raise error

    log = Log()
    assert make_activity(log, load) is None
    assert str(error) in log.lines[0]


def test_later_cupti_failure_loses_only_the_kernels() -> None:
    cupti: Any = FakeCupti()
    log = Log()
    activity = KernelActivity(cupti, log)
    cupti.activity_enable = None
    for _ in range(2):
        trace = activity.start()
        activity.push("launch", 1)
        activity.pop()
        activity.stop()
    assert activity.collect(trace, [1]) == []
    assert len(log.lines) == 1 and "TypeError" in log.lines[0]


def test_cupti_without_callbacks_is_not_used() -> None:
    cupti: Any = FakeCupti()
    cupti.activity_register_callbacks = None
    log = Log()
    assert make_activity(log, lambda name: cupti) is None and "TypeError" in log.lines[0]
