"""`[collectives] peers`: a session cannot make the daemon connect to arbitrary addresses."""

from __future__ import annotations

import json
import socket
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from hearth_proto.reasons import Reason, Refusal
from hearth_proto.v1 import node_pb2
from tests.support.collectives.group_nodes import LentNodes, Rank, form, members, on_device, ranks, work
from tests.support.daemon.harness import DaemonProcess, environment, hearthd, toml, wait_until
from tests.support.daemon.raw import refused
from tests.support.daemon.tenants import tenants

EXPOSED: dict[str, Any] = {"listen": {"lanes": "0.0.0.0:0"}, "insecure": True, "devices": {"cpu_on_network": True}}
"""Settings with which other hosts can reach the daemon."""


@pytest.fixture
def started(cache: Path, lent_nodes: LentNodes) -> Iterator[Any]:
    """Yields a function that starts daemons, which must leave no resources. Daemons without a special configuration
    are lent."""
    with ExitStack() as stack:
        count = 0

        def start(**config: Any) -> DaemonProcess:
            nonlocal count
            number, count = count, count + 1
            if not config:
                return lent_nodes.one(number)
            daemon = DaemonProcess(cache, on_device(number, **config), 1)
            stack.callback(daemon.remove)
            stack.callback(daemon.stop)
            return daemon

        yield start


def join(rank: Rank, created: Any, *addresses: str) -> Refusal:
    ticket = node_pb2.GroupTicket(addresses=addresses or created.ticket.addresses, secret=created.ticket.secret)
    request = node_pb2.JoinGroupRequest(
        session_token=rank.raw.token, group=created.group, node=1, members=members(2), ticket=ticket
    )
    return refused(rank.raw.node.JoinGroup, request, timeout=20)


def test_errors_of_a_reachable_daemon_name_the_missing_setting(started: Any, tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    config, tokens = tenants("alice", **EXPOSED)
    first, second = started(), started(**config, audit={"path": str(path)})
    with socket.create_server(("127.0.0.1", 0)) as victim, Rank(first, 0) as zero:
        created = zero.call("CreateGroup", members=members(2))
        with Rank(second, 1, tokens["alice"]) as one:
            inside = f"127.0.0.1:{victim.getsockname()[1]}"
            for address in (inside, "169.254.169.254:80", "10.0.0.1:22"):
                refusal = join(one, created, address)
                assert refusal.reason == Reason.PERMISSION_DENIED and address in refusal.message
                assert refusal.details["setting"] == "collectives.peers"
            victim.setblocking(False)
            with pytest.raises(BlockingIOError):
                victim.accept()
            refusal = join(one, created)

        def noted() -> list[Any]:
            lines = [json.loads(text) for text in path.read_text().splitlines()]
            found = [each for each in lines if each["event"] == "refused" and each["operation"] == "JoinGroup"]
            return found if len(found) == 4 else []

        entries = wait_until(noted, "four refused targets in the audit log")
        assert entries[0]["addresses"] == inside and {each["tenant"] for each in entries} == {"alice"}
        # The setting that the refusal names solves the problem.
        section = tomllib.loads(refusal.fix.partition("[collectives] ")[2])
        third = started(**config, collectives=section) if on_device(0) == {"devices": {}} else None
        if third is not None:
            with Rank(third, 1, tokens["alice"]) as one:
                one.call("JoinGroup", group=created.group, node=1, members=members(2), ticket=created.ticket)
                work([zero, one], created.group, 1)


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1"])
def test_daemons_of_one_host_connect_with_default_settings(started: Any, name: str) -> None:
    with ranks(started(), started()) as both:
        created = both[0].call("CreateGroup", members=members(2))
        port = created.ticket.addresses[0].rpartition(":")[2]
        ticket = node_pb2.GroupTicket(addresses=[f"{name}:{port}"], secret=created.ticket.secret)
        both[1].call("JoinGroup", group=created.group, node=1, members=members(2), ticket=ticket)
        work(both, created.group, 1)


def test_an_empty_list_allows_nothing(started: Any) -> None:
    with ranks(started(), started(collectives={"peers": []})) as both:
        created = both[0].call("CreateGroup", members=members(2))
        assert join(both[1], created).reason == Reason.PERMISSION_DENIED
        group = form(both[:1])  # a group within the daemon needs no peer
        work(both[:1], group, 1)


def test_print_config_shows_the_peers(tmp_path: Path) -> None:
    path = tmp_path / "hearth.toml"
    path.write_text(toml({"collectives": {"peers": ["auto", "gpu1:7424", "10.0.0.0/8"]}}))
    done = hearthd("print-config", "--config", str(path), env=environment())
    assert done.returncode == 0 and 'peers = ["auto", "gpu1:7424", "10.0.0.0/8"]' in done.stdout
    assert 'peers = ["auto"]' in hearthd("print-config", env=environment()).stdout
