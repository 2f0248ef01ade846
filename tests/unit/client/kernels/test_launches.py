"""Launches, modules, streams, events and profiles, against a fake daemon."""

from __future__ import annotations

import gc
import io
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hearth
from hearth_proto import launches, reasons
from hearth_proto.v1 import commands_pb2
from tests.support.client.fake_daemon import FakeDaemon
from tests.support.client.internals import handle_of, number_of


@pytest.fixture
def f(gpu: hearth.Device) -> hearth.Function:
    return gpu.RawModule(code="source").get_function("f")


def commands(daemon: FakeDaemon, kind: str) -> list[Any]:
    return [command for command in daemon.commands if command.WhichOneof("kind") == kind]


def test_a_launch(gpu: hearth.Device, daemon: FakeDaemon, f: hearth.Function) -> None:
    x = gpu.zeros(10, np.float32)
    f((2, 3), 64, (np.float32(2), x[2:], 7), shared_mem=128, timeout=1.5, mode="unchecked")
    gpu.synchronize()
    (record,) = daemon.records
    assert (record.grid, record.block, record.shared_mem) == ((2, 3, 1), (64, 1, 1), 128)
    assert (record.flags, record.timeout_ns, record.stream) == (launches.LaunchFlag.UNCHECKED, 1_500_000_000, 0)
    assert launches.unpack_layout(record.layout) == [
        launches.LayoutEntry(0, 4),
        launches.LayoutEntry(8, 8, True),
        launches.LayoutEntry(16, 8, read_only=True),  # a Python int, which the daemon converts
    ]
    assert record.buffers == (handle_of(x),)
    assert record.params[8:] == (8).to_bytes(8, "little") + (7).to_bytes(8, "little")


def test_numbas_form_and_lists(gpu: hearth.Device, daemon: FakeDaemon, f: hearth.Function) -> None:
    stream = gpu.stream()
    f[4, 256](np.int32(1))
    f[(4, 2), 256, stream, 64](np.int32(1))
    f([4], [8], [np.int32(1)])
    gpu.synchronize()
    assert [record.grid for record in daemon.records] == [(4, 1, 1), (4, 2, 1), (4, 1, 1)]
    assert [record.shared_mem for record in daemon.records] == [0, 64, 0]
    assert daemon.records[1].stream == number_of(stream)
    with pytest.raises(hearth.LaunchError):
        f[4]


def test_cached_signatures_do_not_mix(gpu: hearth.Device, daemon: FakeDaemon, f: hearth.Function) -> None:
    expected = []
    for _ in range(2):
        for data in (b"1234567\0", b"12345678901234567890123\0"):
            for grid in (1, 2):
                for shared in (0, 8):
                    f(grid, 1, (data,), shared)
                    expected.append((data, grid, shared))
    gpu.synchronize()
    assert [(record.params, record.grid[0], record.shared_mem) for record in daemon.records] == expected


@pytest.mark.parametrize(
    ("launch", "words"),
    [
        (lambda f, x: f(0, 1, ()), r"grid\.x is 0"),
        (lambda f, x: f(1, (1, -2), ()), r"block\.y is -2"),
        (lambda f, x: f(1, 1, (x, np.zeros(3))), "argument 1"),
        (lambda f, x: f(1, 1, (x, 2**64)), "argument 1"),
        (lambda f, x: f(1, 1, x), r"args is a DeviceArray.*\(x,\)"),
        (lambda f, x: f(1, 1, (), shared_mem=-1), "shared_mem is -1"),
        (lambda f, x: f(1, 1, (), shared_mem=100 / 3), r"shared_mem is 33\.3.* \(float\)"),
        (lambda f, x: f(1, 1, (), shared_mem="a"), r"shared_mem is 'a' \(str\)"),
        (lambda f, x: f(1, 1, (), timeout=0), "timeout"),
        (lambda f, x: f(1, 1, (), mode="fast"), "mode"),
        (lambda f, x: f(1, 1, (), cluster=(2, 0)), r"cluster\.y is 0"),
        (lambda f, x: f(1, 1, (), iterations=0), "iterations is 0"),
        (lambda f, x: f(1, 1, (), iterations=True), "iterations is True"),
        (lambda f, x: f(1, 1, (), iterations=2**32), "iterations is 4294967296"),
        (lambda f, x: f(x, 1, ()), "three uint32"),
    ],
)
def test_wrong_launches_are_refused_by_the_client(
    gpu: hearth.Device, daemon: FakeDaemon, f: hearth.Function, launch: Any, words: str
) -> None:
    with pytest.raises(hearth.HearthError, match=words) as caught:
        launch(f, gpu.zeros(3))
    assert caught.value.fix
    gpu.synchronize()
    assert not daemon.records


def test_keywords_are_encoded_in_the_record(gpu: hearth.Device, daemon: FakeDaemon, f: hearth.Function) -> None:
    grid, x = gpu.zeros(3, np.uint32), gpu.zeros(3)
    f(2, 1, (x,), mode="validate", cooperative=True)
    f((4, 2), 1, (hearth.read_only(x),), cluster=(2, 1), iterations=7)
    f(grid, 1, (x,))
    gpu.synchronize()
    plain, extended, dynamic = daemon.records
    assert plain.flags == launches.LaunchFlag.VALIDATE | launches.LaunchFlag.COOPERATIVE
    assert plain.extension is None
    assert extended.extension == launches.Extension((2, 1, 1), 7)
    assert launches.unpack_layout(extended.layout) == [launches.LayoutEntry(0, 8, True, True)]
    assert extended.buffers == plain.buffers
    assert dynamic.extension == launches.Extension(grid_buffer=handle_of(grid))


def test_every_launch_of_a_cooperative_module_is_cooperative(gpu: hearth.Device, daemon: FakeDaemon) -> None:
    f = gpu.RawKernel("source", "f", enable_cooperative_groups=True)
    grid, block = (2,), (1,)
    for _ in range(4):
        f(grid, block, ())
    f[2, 1]()
    gpu.synchronize()
    assert [record.flags for record in daemon.records] == [launches.LaunchFlag.COOPERATIVE] * 5


def test_read_only_takes_arrays(gpu: hearth.Device) -> None:
    x = hearth.read_only(gpu.zeros(3))
    assert hearth.read_only(x) is x
    assert "read_only(DeviceArray" in repr(x)
    with pytest.raises(hearth.LaunchTypeError, match="ndarray"):
        hearth.read_only(np.zeros(3))  # type: ignore[arg-type]


def test_arrays_of_another_session_are_refused(daemon: FakeDaemon, gpu: hearth.Device, f: hearth.Function) -> None:
    with hearth.connect(daemon.target) as other:
        theirs = other.device(0).zeros(3)
        with pytest.raises(hearth.LaunchError, match=r"argument 1 .*another device or session"):
            f(1, 1, (np.int32(1), theirs))
        with pytest.raises(hearth.UnsupportedError, match="another"):
            gpu.asarray(theirs)
        with pytest.raises(hearth.ArgumentError, match="another device or session"):
            f(1, 1, (), stream=other.device(0).stream())
    x = gpu.zeros(3)
    x.free()
    with pytest.raises(hearth.InvalidHandleError, match=r"argument 0.*freed"):
        f(1, 1, (x,))


# ---- modules ----


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ('extern "C" __global__ void f() {}', commands_pb2.CODE_KIND_CUDA_CPP),
        (b"int x;", commands_pb2.CODE_KIND_CUDA_CPP),
        ("", commands_pb2.CODE_KIND_CUDA_CPP),
        ("//\n// Generated by NVIDIA NVVM Compiler\n//\n\n.version 8.0\n.target sm_90", commands_pb2.CODE_KIND_PTX),
        (b"\x7fELF\x02", commands_pb2.CODE_KIND_CUBIN),
        (b"\x50\xed\x55\xba\x01", commands_pb2.CODE_KIND_FATBIN),
    ],
)
def test_kinds_of_code(gpu: hearth.Device, daemon: FakeDaemon, code: Any, kind: int, tmp_path: Path) -> None:
    gpu.RawModule(code, options=("-DN=4",), name_expressions=["f<int>"], headers={"a.h": "int a;"})
    (tmp_path / "code").write_bytes(code.encode() if isinstance(code, str) else code)
    gpu.RawModule(path=tmp_path / "code")
    gpu.synchronize()
    first, second = (command.load_module for command in commands(daemon, "load_module"))
    assert first.kind == second.kind == kind and first.code == second.code
    assert (list(first.options), list(first.name_expressions), dict(first.headers)) == (
        ["-DN=4"], ["f<int>"], {"a.h": "int a;"},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("keywords", "kind"),
    [
        ({"code": "x", "backend": "hiprtc"}, hearth.UnsupportedError),
        ({"code": "x", "jitify": "yes"}, hearth.UnsupportedError),
        ({"code": "x", "nonsense": 1}, hearth.UnsupportedError),
        ({}, hearth.ArgumentError),
        ({"code": 3}, hearth.DtypeError),
        ({"code": "x", "options": "-DN"}, hearth.DtypeError),
        ({"code": "x" * (1 << 20)}, hearth.ArgumentError),
    ],
)
def test_modules_that_the_client_refuses(gpu: hearth.Device, keywords: Any, kind: type[Exception]) -> None:
    with pytest.raises(kind):
        gpu.RawModule(**keywords)


def test_compile(gpu: hearth.Device, daemon: FakeDaemon) -> None:
    module, log = gpu.RawModule(code="source", backend="nvrtc", jitify=False), io.StringIO()
    module.compile(log_stream=log)
    assert log.getvalue() == "a warning" and module.functions == ["f"]
    daemon.fail_next["describe_module"] = reasons.Refusal(
        reasons.Reason.COMPILE_FAILED, "does not compile", details={"log": "line 1"}
    )
    with pytest.raises(hearth.CompileError) as caught:
        module.compile(log_stream=log)
    assert caught.value.log == "line 1" and log.getvalue() == "a warningline 1"


def test_function_attributes(gpu: hearth.Device, daemon: FakeDaemon, f: hearth.Function) -> None:
    assert f.num_regs == 12 and f.attributes["shared_size_bytes"] == 0 and f.parameters == []
    assert daemon.count("describe_function") == 1


def test_globals(gpu: hearth.Device, daemon: FakeDaemon) -> None:
    module = gpu.RawModule(code="source")
    module.get_global("c").set(np.arange(4, dtype=np.float32))
    typed = module.get_global("c", np.float32, (2, 2))
    assert module.get_global("c").get().shape == (16,)
    with pytest.raises(hearth.ArgumentError, match="16 bytes"):
        module.get_global("c").set(np.zeros(5, np.float32))
    with pytest.raises(hearth.DtypeError):
        typed.set(np.zeros((2, 2)))
    with pytest.raises(hearth.ArgumentError, match="16 bytes"):
        module.get_global("c", np.float32, (5,))
    typed.set(np.ones((2, 2), np.float32))
    assert typed[1].get().tolist() == [1, 1]
    del typed
    gc.collect()
    gpu.synchronize()
    assert daemon.count("free") == 0  # the variables belong to the module
    del module
    gc.collect()
    gpu.synchronize()
    assert daemon.count("unload_module") == 1


def test_a_module_lives_as_long_as_its_functions(gpu: hearth.Device, daemon: FakeDaemon) -> None:
    f = gpu.RawKernel("source", "f")
    gc.collect()
    f(1, 1, ())
    gpu.synchronize()
    assert daemon.count("unload_module") == 0
    del f
    gc.collect()
    gpu.synchronize()
    assert daemon.count("unload_module") == 1


# ---- streams, events, profiles ----


def test_current_streams(gpu: hearth.Device, daemon: FakeDaemon, f: hearth.Function) -> None:
    outer, inner = gpu.stream(), gpu.stream(priority=-1)
    with outer as entered:
        assert entered is outer is gpu.current_stream
        f(1, 1, ())
        with inner:
            f(1, 1, ())
            f(1, 1, (), stream=gpu.default_stream)
            thread = threading.Thread(target=lambda: f(1, 1, ()))
            thread.start()
            thread.join()
        f(1, 1, ())
    f(1, 1, ())
    gpu.synchronize()
    assert gpu.current_stream is gpu.default_stream
    assert [record.stream for record in daemon.records] == [
        number_of(outer),
        number_of(inner),
        0,
        0,
        number_of(outer),
        0,
    ]
    assert [command.create_stream.priority for command in commands(daemon, "create_stream")] == [0, -1]
    del outer, inner, entered
    gc.collect()
    gpu.synchronize()
    assert daemon.count("destroy_stream") == 2


def test_everything_is_ordered_on_the_current_stream(gpu: hearth.Device, daemon: FakeDaemon) -> None:
    with gpu.stream() as stream:
        x = gpu.asarray(np.arange(3))
        x.copy().fill(2)
        x.get()
        gpu.flush()
        stream.synchronize()
    ordered = [command for command in daemon.commands if command.WhichOneof("kind") not in ("create_stream", "free")]
    assert {command.stream for command in ordered} == {number_of(stream)}


def test_events(gpu: hearth.Device, daemon: FakeDaemon) -> None:
    stream = gpu.stream()
    start = stream.record()
    end = stream.record(gpu.event())
    gpu.default_stream.wait_event(end)
    assert end.done and stream.done
    end.synchronize()
    assert hearth.get_elapsed_time(start, end) == 1.5 == end.elapsed(start)
    never_recorded = gpu.event()  # done, without a request: the daemon does not know its handle
    never_recorded.synchronize()
    gpu.default_stream.wait_event(never_recorded)
    assert never_recorded.done and len(commands(daemon, "query_event")) == 3
    (wait,) = commands(daemon, "wait_event")
    assert (wait.stream, wait.wait_event.event) == (0, number_of(end))
    daemon.lose_on = "sync"
    with pytest.raises(hearth.DeviceLostError):
        gpu.synchronize()
    with pytest.raises(hearth.InvalidHandleError, match="record it again"):
        end.synchronize()
    stream.record(end)
    assert end.done


def test_polling_a_stream_records_one_event(gpu: hearth.Device, daemon: FakeDaemon, f: hearth.Function) -> None:
    stream = gpu.stream()
    daemon.not_done = 2
    assert [stream.done for _ in range(3)] == [False, False, True]
    assert daemon.count("record_event") == 1
    f(1, 1, (), stream=stream)
    assert stream.done
    assert daemon.count("record_event") == 2


def test_a_stream_can_be_current_in_several_threads(gpu: hearth.Device) -> None:
    stream, barrier, seen = gpu.stream(), threading.Barrier(4), []

    def use() -> None:
        with stream:
            barrier.wait(5)
            seen.append(gpu.current_stream)
            barrier.wait(5)
        seen.append(gpu.current_stream)

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(id, seen)) == sorted([id(stream)] * 4 + [id(gpu.default_stream)] * 4)


def test_profiles(gpu: hearth.Device, daemon: FakeDaemon, f: hearth.Function) -> None:
    profile = gpu.profile()
    with pytest.raises(hearth.ArgumentError):
        profile.device_ns  # noqa: B018
    with gpu.stream() as stream, profile, gpu.profile() as inner:
        f(1, 1, ())
    assert (profile.device_ns, profile.wall_ns, inner.device_ns) == (5, 7, 5)
    assert {command.stream for command in commands(daemon, "start_profile")} == {number_of(stream)}
    daemon.fail_next["launches"] = reasons.Refusal(reasons.Reason.LAUNCH_FAILED, "bad kernel")
    with pytest.raises(hearth.LaunchError, match="bad kernel"), gpu.profile():
        f(1, 1, ())
    with pytest.raises(ZeroDivisionError), gpu.profile():
        1 / 0  # noqa: B018
    gpu.synchronize()


def test_a_daemon_without_pointers_in_structs_is_named(
    gpu: hearth.Device, daemon: FakeDaemon, f: hearth.Function
) -> None:
    x = gpu.empty(4, np.float32)
    value = hearth.Struct(bytes(16), pointers={8: x})
    attempts = (
        lambda: f(1, 1, (value,)),
        lambda: gpu.pointers([x]),
        lambda: gpu.dispatch(f, 1, 1, args=[value]),
    )
    for attempt in attempts:
        with pytest.raises(hearth.UnsupportedError, match="takes no device pointers") as caught:
            attempt()
        assert '"struct_pointers"' in caught.value.fix
    gpu.synchronize()
    assert not daemon.records and not commands(daemon, "write_pointers")


def test_a_daemon_without_launch_attributes_or_linking_is_named(
    gpu: hearth.Device, daemon: FakeDaemon, f: hearth.Function
) -> None:
    attributes = hearth.LaunchAttributes(priority=-1)
    attempts = {
        '"launch_attributes"': lambda: f(1, 1, (), attributes=attributes),
        ' "launch_attributes"': lambda: gpu.dispatch(f, 1, 1, args=[], attributes=attributes),
        '"linking"': lambda: gpu.RawModule(code=["", ""]),
    }
    for feature, attempt in attempts.items():
        with pytest.raises(hearth.UnsupportedError) as caught:
            attempt()
        assert feature in caught.value.fix
    gpu.synchronize()
    assert not daemon.records


def test_attributes_are_encoded_in_the_record(daemon: FakeDaemon) -> None:
    daemon.features = [*daemon.features, "launch_attributes"]
    with hearth.connect(daemon.target) as node:
        gpu = node.device(0)
        f, x = gpu.RawKernel("source", "f"), gpu.zeros((4, 4), np.float32)
        window = hearth.AccessPolicyWindow(x[1:3], 0.5, miss="normal")
        full = hearth.LaunchAttributes(True, -2, window, "remote")
        grid, block = (2,), (1,)
        for attributes in (full, hearth.LaunchAttributes(), None, hearth.LaunchAttributes(priority=1), None):
            for _ in range(3):
                f(grid, block, (x,), attributes=attributes)
        gpu.synchronize()
    found = [record.extension and record.extension.attributes for record in daemon.records]
    packed = launches.AccessWindow(handle_of(x), 16, 32, 0.5, 2, 0)
    expected = [
        launches.Attributes(True, -2, 1, packed), launches.Attributes(), None, launches.Attributes(priority=1), None
    ]  # fmt: skip
    assert found == [attributes for attributes in expected for _ in range(3)]
