"""Messages encoded by hand, compared with the generated classes; targets."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hearth
from hearth.codec import batch
from hearth.endpoint import target
from hearth_proto.v1 import commands_pb2, device_pb2
from tests.support.folders import short_folder


@given(st.integers(1, 2**64 - 1), st.lists(st.binary(max_size=300), max_size=5))
def test_batches(seq: int, payloads: list[bytes]) -> None:
    commands = [commands_pb2.Command(stream=3, write=commands_pb2.Write(data=data)) for data in payloads]
    expected = device_pb2.ExecuteRequest(batch=commands_pb2.Batch(seq=seq, commands=commands))
    data = batch.batch_request(seq, [command.SerializeToString() for command in commands])
    assert device_pb2.ExecuteRequest.FromString(data) == expected


@given(st.lists(st.binary(max_size=300)))
def test_launches(records: list[bytes]) -> None:
    data = batch.launches_command(records, sum(map(len, records)))
    assert commands_pb2.Command.FromString(data) == commands_pb2.Command(launches=b"".join(records))


@given(
    st.integers(1, 2**64 - 1) | st.integers(1, 2**22),
    st.lists(st.binary(min_size=1, max_size=300), max_size=5),
    st.integers(1, 2**64 - 1) | st.integers(1, 2**22),
)
def test_a_run_and_a_request(seq: int, records: list[bytes], request: int) -> None:
    asked = commands_pb2.Command(sync=commands_pb2.Sync(all_streams=True))
    command = batch.with_request(request, asked.SerializeToString())
    asked.request = request
    commands = [commands_pb2.Command(launches=b"".join(records)), asked] if records else [asked]
    data = batch.run_request(seq, records, sum(map(len, records)), command)
    expected = device_pb2.ExecuteRequest(batch=commands_pb2.Batch(seq=seq, commands=commands))
    assert device_pb2.ExecuteRequest.FromString(data) == expected
    assert data == batch.run_request(seq, records, sum(map(len, records)), command), "encoded from the kept records"


def result(request: int) -> commands_pb2.Result:
    return commands_pb2.Result(request=request, done=commands_pb2.Done())


@given(st.integers(0, 2**30) | st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
def test_answers_to_requests_are_read_without_protobuf(request: int, size: int) -> None:
    filled = commands_pb2.Result(read=commands_pb2.ReadResult(size=size))
    for answer, payload in ((result(0), batch.DONE), (filled, filled.SerializeToString())):
        answer.request = request
        data = device_pb2.ExecuteResponse(result=answer).SerializeToString()
        assert batch.parse_answer(data) == ((request, payload) if 0 < request < 2**28 else (0, b""))


@given(st.integers(1, 2**28), st.integers(0, 12), st.integers(0, 255), st.binary(max_size=2))
def test_other_responses_are_left_to_protobuf(request: int, at: int, byte: int, more: bytes) -> None:
    """Each response that is decoded by hand as done is also decoded as done by the generated classes."""
    data = bytearray(device_pb2.ExecuteResponse(result=result(request)).SerializeToString() + more)
    data[at % len(data)] = byte
    number, payload = batch.parse_answer(bytes(data))
    if number and payload == batch.DONE:
        assert device_pb2.ExecuteResponse.FromString(bytes(data)).result == result(number)


def test_responses_that_are_not_only_done() -> None:
    failed = commands_pb2.Result(request=3)
    failed.error.code = 3
    usage = commands_pb2.Result(request=3, memory_usage=commands_pb2.MemoryUsageResult())
    long = commands_pb2.Result(request=3, read=commands_pb2.ReadResult(data=bytes(300)))
    for other in (failed, usage, long, commands_pb2.Result(request=3)):
        number, payload = batch.parse_answer(device_pb2.ExecuteResponse(result=other).SerializeToString())
        assert payload != batch.DONE and number in (0, 3)
    for response in (
        device_pb2.ExecuteResponse(ack=device_pb2.Ack(seq=3)),
        device_pb2.ExecuteResponse(event=device_pb2.Event(output=device_pb2.Output(text="x"))),
        device_pb2.ExecuteResponse(),
    ):
        assert batch.parse_answer(response.SerializeToString()) == (0, b"")
    serialized = device_pb2.ExecuteResponse(result=result(2**27)).SerializeToString()
    for size in range(len(serialized)):
        assert batch.parse_answer(serialized[:size]) == (0, b""), "cut short"


@pytest.mark.parametrize(
    ("given", "address", "loopback"),
    [
        ("gpu7", "gpu7:7421", False),
        ("gpu7:99", "gpu7:99", False),
        ("127.0.0.1:99", "127.0.0.1:99", True),
        ("localhost", "localhost:7421", True),
        ("::1", "[::1]:7421", True),
        ("[::1]:99", "[::1]:99", True),
        ("unix:/a/b.sock", "unix:/a/b.sock", True),
        ("unix:///a/b.sock", "unix:/a/b.sock", True),
    ],
)
def test_targets(given: str, address: str, loopback: bool) -> None:
    assert target.resolve(given)[:2] == (address, loopback)


@pytest.mark.parametrize(
    "given", ["", "unix:", "http://gpu7:99", "gpu7:x", "gpu7:0", "gpu7:99999", ":99", "unix:/a\0b"]
)
def test_wrong_targets(given: str) -> None:
    with pytest.raises(hearth.ArgumentError):
        target.resolve(given)


def test_path_of_a_unix_socket_has_at_most_107_bytes() -> None:
    longest = f"unix:/{'x' * 106}"
    assert target.resolve(longest).address == longest
    for path in (f"{longest}x", f"unix:/{'é' * 60}"):
        with pytest.raises(hearth.ArgumentError, match=r"has 1\d\d bytes; 107 are possible") as raised:
            target.resolve(path)
        assert raised.value.reason == "INVALID_ARGUMENT" and "shorter path" in raised.value.fix


@pytest.fixture
def folder() -> Iterator[Path]:
    made = short_folder()
    yield made
    shutil.rmtree(made)


def test_sources_of_the_target_in_order(monkeypatch: Any, folder: Path) -> None:
    monkeypatch.setenv("HEARTH_TARGET", "elsewhere:1")
    assert target.resolve(None).address == "elsewhere:1"
    assert target.resolve("here:2").address == "here:2"
    monkeypatch.delenv("HEARTH_TARGET")
    resolve = partial(target.resolve, system_socket=str(folder / "absent.sock"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    assert resolve(None).address == "127.0.0.1:7421"
    import socket

    (folder / "hearth").mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "hearth" / "hearth.sock"))
        there = f"unix:{folder}/hearth/hearth.sock"
        assert resolve(None).address == there
        monkeypatch.setenv("HEARTH_TARGET", "elsewhere:1")
        assert resolve("local").address == there, "independent of the environment"
        monkeypatch.setenv("HEARTH_TARGET", "local")
        assert resolve(None).address == there
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    monkeypatch.setenv("HOME", str(folder / "home"))
    assert resolve("local").address == "127.0.0.1:7421"
    (folder / "home" / ".cache" / "hearth").mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "home" / ".cache" / "hearth" / "hearth.sock"))
        assert resolve("local").address == f"unix:{folder}/home/.cache/hearth/hearth.sock"
