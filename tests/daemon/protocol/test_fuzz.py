"""Every RPC and every socket with arbitrary messages: no process dies, other sessions are unaffected, and no data of
other sessions leaks.

HEARTH_TEST_FUZZ_SECONDS=60 fuzzes each target for a full minute; `python -m tests.fuzz` does the same outside of
pytest.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from hearth_proto.v1 import device_pb2, node_pb2
from tests.fuzz import targets
from tests.fuzz.messages import Maker
from tests.fuzz.run import SOCKETS, Fuzz, fuzzing

SECONDS = float(os.environ.get("HEARTH_TEST_FUZZ_SECONDS", "0.25"))
SEED = int(os.environ.get("HEARTH_TEST_FUZZ_SEED", "1"))


@pytest.fixture(scope="module")
def fuzz(cache: Path) -> Iterator[Fuzz]:
    with fuzzing(cache, SEED) as running:
        yield running
        running.problems.clear()  # reported by the tests; problems found later concern all of them
    assert not running.problems


@pytest.mark.parametrize("name", Fuzz.names())
def test_anything(fuzz: Fuzz, name: str) -> None:
    before = len(fuzz.problems)
    sent = fuzz.run(name, SECONDS)
    assert sent and not fuzz.problems[before:], "\n".join(fuzz.problems[before : before + 5])


def test_all_methods_are_fuzzed() -> None:
    """Methods are found by the services' descriptors, so that added methods are included."""
    services = [*node_pb2.DESCRIPTOR.services_by_name.values(), *device_pb2.DESCRIPTOR.services_by_name.values()]
    names = {f"{service.name}/{method.name}" for service in services for method in service.methods}
    assert {"NodeService/OpenSession", "DeviceService/Execute", "DeviceService/AttachBuffer"} <= names
    assert names | set(SOCKETS) == set(Fuzz.names())


def test_most_messages_can_be_parsed() -> None:
    """Most messages of the fuzzer can be parsed, and set fields."""
    maker = Maker(random.Random(5), lambda: "token")
    for rpc in targets.rpcs():
        made = [targets.payloads(rpc, maker) for _ in range(100)]
        readable = 0
        for payload in (payload for each in made for payload in each):
            message = rpc.message()
            try:
                message.ParseFromString(payload)
            except Exception:
                continue
            readable += bool(message.ByteSize()) or not rpc.method.input_type.fields
        assert readable > 10, rpc.name
