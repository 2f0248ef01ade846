"""Limits on requests: fields on the wire, the lock for callers without a credential, and the account of their bytes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from hearth_proto.v1 import commands_pb2, device_pb2, node_pb2
from hearthd.front.admission import account as account_module
from hearthd.front.admission import wire
from hearthd.front.admission.account import UnauthenticatedBytes
from hearthd.front.admission.fair_lock import FairLock
from hearthd.front.admission.limits import AdmissionLimits, CredentialSource
from hearthd.front.config.front_limits import AdmissionSettings

GROUP = node_pb2.CreateGroupRequest.DESCRIPTOR
MODULE = device_pb2.LoadModuleRequest.DESCRIPTOR


# ---- fields on the wire ----


def test_fields_of_a_message_are_counted_up_to_the_limit() -> None:
    members = node_pb2.CreateGroupRequest(members=[node_pb2.GroupMember() for _ in range(100)]).SerializeToString()
    assert not wire.exceeds(members, GROUP, 100)
    assert wire.exceeds(members, GROUP, 99)


def test_fields_within_messages_and_maps_are_counted() -> None:
    command = commands_pb2.LoadModule(options=["-x"] * 50, headers={str(number): "" for number in range(50)})
    message = device_pb2.LoadModuleRequest(command=command).SerializeToString()
    fields = 1 + 50 + 50 * 3  # the command, its options, and its headers with a key and a value each
    assert not wire.exceeds(message, MODULE, fields)
    assert wire.exceeds(message, MODULE, fields - 1)


def test_unknown_fields_and_groups_are_counted() -> None:
    assert wire.exceeds(b"\xfa\x7f\x00" * 300, GROUP, 250)  # field 2047, empty bytes
    assert wire.exceeds(b"\x0b\x0c" * 300, GROUP, 250)  # a group that begins and ends


def test_long_data_is_one_field() -> None:
    command = commands_pb2.LoadModule(code=b"\x12\x00" * 500_000)
    assert not wire.exceeds(device_pb2.LoadModuleRequest(command=command).SerializeToString(), MODULE, 256)


@given(st.binary(max_size=400))
def test_malformed_messages_are_left_to_the_decoder(data: bytes) -> None:
    wire.exceeds(data, MODULE, 1)
    assert not wire.exceeds(data, MODULE, len(data))


# ---- limits of methods ----


def test_only_methods_with_bulk_data_take_long_messages() -> None:
    limits = AdmissionLimits(AdmissionSettings(), 17 << 20)
    assert limits.find("hearth.v1.DeviceService", "LoadModule").max_bytes == 17 << 20
    assert limits.find("hearth.v1.DeviceService", "Launch").max_bytes == 1 << 20
    assert limits.find("hearth.v1.NodeService", "CreateGroup").max_bytes == 64 << 10


def test_no_method_but_a_session_takes_a_credential_in_its_message() -> None:
    limits = AdmissionLimits(AdmissionSettings(), 17 << 20)
    assert limits.find("hearth.v1.NodeService", "OpenSession").credential is CredentialSource.LOGIN
    assert limits.find("hearth.v1.NodeService", "Describe").credential is CredentialSource.HEADERS
    assert limits.find("hearth.v1.DeviceService", "Launch").credential is CredentialSource.SESSION
    assert limits.find("anything.else", "Method").credential is CredentialSource.HEADERS


def test_a_long_message_has_longer() -> None:
    limits = AdmissionLimits(AdmissionSettings(request_timeout=10, request_rate=64 << 10), 17 << 20)
    assert limits.seconds(limits.find("hearth.v1.DeviceService", "LoadModule")) == 10 + 17 * 16
    assert limits.seconds(limits.find("hearth.v1.NodeService", "Describe")) == 11


# ---- lock ----


def test_turns_are_taken_one_after_the_other_and_by_hosts() -> None:
    order: list[str] = []

    async def scenario() -> None:
        turns, go = FairLock(), asyncio.Event()
        running = 0

        async def work(name: str) -> None:
            nonlocal running
            running += 1
            assert running == 1
            if not order:
                await go.wait()
            order.append(name)
            running -= 1

        tasks = []
        for name in ("a1", "a2", "a3", "b1"):
            tasks.append(asyncio.create_task(turns.run(name[0], lambda name=name: work(name))))
            await asyncio.sleep(0)
        go.set()
        await asyncio.gather(*tasks)

    asyncio.run(scenario())
    assert order[0] == "a1" and order.index("b1") < order.index("a3")


def test_a_turn_that_lasts_ends_when_another_waits() -> None:
    async def scenario() -> str:
        turns = FairLock(alone=600, contended=0.01)
        first = asyncio.create_task(turns.run("a", asyncio.Event().wait))
        await asyncio.sleep(0)

        async def answer() -> str:
            return "second"

        found = await turns.run("b", answer)
        with pytest.raises(TimeoutError):
            await first
        return found

    assert asyncio.run(scenario()) == "second"


def test_cancelled_waiting_caller_loses_its_turn() -> None:
    async def scenario() -> None:
        turns, go = FairLock(alone=600, contended=600), asyncio.Event()
        first = asyncio.create_task(turns.run("a", go.wait))
        await asyncio.sleep(0)
        second = asyncio.create_task(turns.run("b", go.wait))
        third = asyncio.create_task(turns.run("c", go.wait))
        await asyncio.sleep(0)
        second.cancel()
        go.set()
        async with asyncio.timeout(10):
            await asyncio.gather(first, third)
        assert second.cancelled() or second.cancelling()

    asyncio.run(scenario())


def test_caller_cancelled_at_its_turn_passes_the_turn_on() -> None:
    async def scenario() -> None:
        turns, go = FairLock(alone=600, contended=600), asyncio.Event()
        first = asyncio.create_task(turns.run("a", go.wait))
        await asyncio.sleep(0)
        second = asyncio.create_task(turns.run("b", go.wait))
        third = asyncio.create_task(turns.run("c", go.wait))
        await asyncio.sleep(0)
        first.add_done_callback(lambda _: second.cancel())
        go.set()
        async with asyncio.timeout(10):
            await asyncio.gather(first, third)

    asyncio.run(scenario())


# ---- account ----


def account(most: int = 100) -> UnauthenticatedBytes:
    return UnauthenticatedBytes(most, CollectorRegistry())


def test_no_more_bytes_are_held_than_the_account_has() -> None:
    book = account()
    with book.holding(80) as first, book.holding(30) as second:
        assert first and not second and book.held_bytes == 80
    assert book.held_bytes == 0 and book.reserve(100)


def test_a_limit_is_logged_once_in_a_while_and_counted_always(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[dict[str, Any]] = []
    monkeypatch.setattr(account_module.log, "warning", lambda event, **fields: lines.append(fields), raising=False)
    registry = CollectorRegistry()
    book = UnauthenticatedBytes(100, registry)
    for _ in range(50):
        book.refused("request_size", "ipv4:10.0.0.1:5", "/x/" + "y" * 500)
    assert [line["limit"] for line in lines] == ["request_size"] and len(lines[0]["method"]) == 128
    assert registry.get_sample_value("hearth_admission_refusals_total", {"limit": "request_size"}) == 50
