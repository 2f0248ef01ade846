"""Representations in notebooks: they show state that the client has, send no command to the daemon, and escape all
text."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest

import hearth
from hearth import html_repr
from hearth.blocking.profile import Trace
from hearth.types import MemoryUsage
from hearth_proto.v1 import commands_pb2
from tests.support.client.fake_daemon import FakeDaemon

VOID = {"br", "hr", "img"}


class Checked(HTMLParser):
    """Parser that accepts only elements that are closed in order, and keeps the texts and the tags."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.texts: list[str] = []
        self.feed(page)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.add(tag)
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def texts(shown: Any) -> list[str]:
    found = Checked(shown._repr_html_())
    assert found.tags <= {"div", "b", "table", "thead", "tbody", "tr", "th", "td"}
    return found.texts


def answers(daemon: FakeDaemon, **results: Any) -> None:
    """Makes the daemon answer commands of a kind with the given result."""
    for kind, answer in results.items():

        def do(command: Any, part: Any, result: commands_pb2.Result, answer: Any = answer) -> None:
            field = next(each for each in result.DESCRIPTOR.fields if each.message_type is answer.DESCRIPTOR)
            getattr(result, field.name).CopyFrom(answer)

        setattr(daemon, f"do_{kind}", do)


def test_an_array(gpu: hearth.Device, daemon: FakeDaemon) -> None:
    x = gpu.asarray(np.zeros((3, 1 << 20), np.float32))
    gpu.synchronize()
    commands = len(daemon.commands)
    found = texts(x)
    assert found[0] == "hearth.DeviceArray"
    assert {"(3, 1048576)", "float32", "12 MiB", "0: fake (cpu) on fake"} <= set(found)
    assert "strides" in texts(x[:, 3:7]) and "strides" not in found
    assert len(daemon.commands) == commands, "the representation sends no command"
    view = x[0]
    x.free()
    assert texts(view)[-1] == "freed"


def test_a_node_and_its_devices(daemon: FakeDaemon) -> None:
    with hearth.connect(daemon.target) as node:
        gpu = node.device(0)
        found = texts(node)
        assert found[0] == f"hearth.Node fake at {daemon.target}: session s" and {"fake", "cpu"} <= set(found)
        assert texts(gpu)[0] == "hearth.Device 0: fake"
    assert texts(node)[0].endswith(": closed") and texts(gpu)


def test_names_are_escaped(gpu: hearth.Device) -> None:
    evil = "<script>alert('&')</script>"
    kernel = gpu.RawKernel("code", evil)
    assert texts(kernel)[0] == f"hearth.Kernel {evil}" and "<script" not in kernel._repr_html_()
    assert "<script" not in gpu.zeros(3, [(evil, "u1")])._repr_html_()


def test_a_kernel_does_not_wait_for_its_compile(gpu: hearth.Device, daemon: FakeDaemon) -> None:
    kernel = gpu.RawKernel("code", "saxpy")
    daemon.never_answer.add("describe_function")
    assert any("not requested yet" in each for each in texts(kernel))
    daemon.never_answer.clear()
    answers(
        daemon,
        describe_function=commands_pb2.FunctionResult(
            registers=24, static_shared_bytes=2048, parameters=[{"offset": 0, "size": 8}, {"offset": 8, "size": 4}]
        ),
    )
    assert kernel.num_regs == 24
    assert {"24", "2 KiB", "2, 12 bytes"} <= set(texts(kernel))


def test_a_profile(gpu: hearth.Device, daemon: FakeDaemon) -> None:
    answers(daemon, end_profile=commands_pb2.ProfileResult(device_ns=1_500, wall_ns=2_000_000_000))
    with gpu.profile() as profile:
        assert texts(profile)[-1] == "running" and repr(profile) == "<hearth.Profile: running>"
    assert texts(profile) == ["hearth.Profile", "device", "1.5 µs", "wall", "2.000 s"]
    assert repr(profile) == "<hearth.Profile: 1500 ns on the device, 2000000000 ns in total>"


def test_a_trace_is_summed_up(gpu: hearth.Device, daemon: FakeDaemon) -> None:
    event = commands_pb2.TraceEvent
    result = commands_pb2.TraceResult(
        dropped=7,
        events=[
            event(name="write", started_ns=0, ended_ns=100, bytes=4096),
            event(name="launch", kernel="slow<&>", started_ns=0, ended_ns=900_000),
            event(name="launch", kernel="slow<&>", started_ns=0, ended_ns=100_000, error="LAUNCH_FAILED"),
            *[event(name="launch", kernel=f"k{i}", started_ns=0, ended_ns=10) for i in range(30)],
        ],
    )
    answers(daemon, end_trace=result)
    with gpu.trace() as trace:
        assert texts(trace)[-1] == "running"
    found = texts(trace)
    assert found[0].endswith("33 commands, 7 more dropped")
    head = found.index("failed")
    assert found[head + 1 : head + 7] == ["launch", "slow<&>", "2", "1 ms", "500 µs", "1"]
    assert found[-1] == "and 12 more"
    assert isinstance(trace, Trace)


def test_memory(gpu: hearth.Device) -> None:
    usage = MemoryUsage(3, 3 << 20, 512, 4 << 20, 5 << 30, 8 << 30)
    found = texts(usage)
    assert found[:5] == ["hearth.MemoryUsage", "allocations", "3", "in use", "3 MiB"] and "peak" not in found


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (0, "0 bytes"),
        (1023, "1023 bytes"),
        (1024, "1 KiB"),
        (1536, "1.5 KiB"),
        (3 << 30, "3 GiB"),
        (5 << 40, "5.0 TiB"),
    ],
)
def test_sizes(given: int, shown: str) -> None:
    assert html_repr.size(given) == shown


@pytest.mark.parametrize(
    ("given", "shown"), [(0, "0 ns"), (999, "999 ns"), (1500, "1.5 µs"), (2.5e6, "2.5 ms"), (61e9, "61.000 s")]
)
def test_durations(given: float, shown: str) -> None:
    assert html_repr.duration(given) == shown
