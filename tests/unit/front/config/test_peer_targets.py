"""`[collectives] peers`: the addresses in tickets to which a daemon may connect."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from hearthd.front.addresses import Address, parse_address
from hearthd.front.config.loader import ConfigError, load
from hearthd.front.config.peer_targets import LOOPBACK, PRIVATE, parse_peer
from hearthd.front.peers import targets as peer_targets
from hearthd.front.peers.targets import PeerTargets, auto_networks


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """Addresses by name, for name lookups; other names are unknown."""
    known: dict[str, list[str]] = {"lookups": []}

    def resolved(host: str) -> list[str]:
        known["lookups"].append(host)
        if host not in known:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return known[host]

    monkeypatch.setattr(peer_targets, "_resolve_host", resolved)
    return known


def find(text: str, *peers: str, auto: Any = LOOPBACK) -> list[str]:
    async def work() -> list[Address]:
        targets = PeerTargets(peers, auto)
        try:
            return await targets.resolve(parse_address(text))
        finally:
            targets.close()

    return list(map(str, asyncio.run(work())))


@pytest.mark.parametrize(
    ("text", "peers"),
    [
        ("127.0.0.1:5", ["auto"]), ("127.9.9.9:5", ["auto"]), ("[::1]:5", ["auto"]),
        ("10.1.2.3:7424", ["10.0.0.0/8"]), ("[fd00::7]:7424", ["fd00::/64"]), ("10.1.2.3:7", ["8.8.8.8", "10.1.2.3"]),
        ("10.1.2.3:7424", ["10.1.2.3:7424"]), ("[fd00::7]:7424", ["[fd00::7]:7424"]), ("[fd00::7]:1", ["fd00::7"]),
        ("8.8.8.8:53", ["0.0.0.0/0"]), ("127.0.0.1:5", ["10.0.0.0/8", "auto"]),
    ],
)  # fmt: skip
def test_addresses_that_are_allowed(text: str, peers: list[str]) -> None:
    assert find(text, *peers) == [text]


@pytest.mark.parametrize(
    ("text", "peers"),
    [
        ("127.0.0.1:5", []), ("127.0.0.1:5", ["10.0.0.0/8"]), ("10.1.2.3:7424", ["auto"]),
        ("11.1.2.3:7", ["10.0.0.0/8"]),
        ("10.1.2.3:22", ["10.1.2.3:7424"]), ("[::ffff:10.1.2.3]:7", ["::/0"]), ("8.8.8.8:53", ["::/0"]),
        ("169.254.169.254:80", ["auto"]), ("0.0.0.0:5", ["0.0.0.0/0"]), ("[::]:5", ["::/0", "0.0.0.0/0"]),
        ("224.0.0.1:5", ["0.0.0.0/0"]), ("[ff02::1]:5", ["::/0"]),
    ],
)  # fmt: skip
def test_addresses_that_are_not(text: str, peers: list[str]) -> None:
    assert find(text, *peers) == []


def test_addresses_in_unusual_notation_are_normalised() -> None:
    assert find("[::ffff:127.0.0.1]:5", "auto") == ["127.0.0.1:5"]
    assert find("[::ffff:10.0.0.1]:5", "auto") == []
    assert find("0x7f000001:5", "auto") == ["127.0.0.1:5"] and find("0x0a000001:5", "auto") == []
    for text in ("0:5", "127.1:5", "2130706433:5", "a b:5", "a/b:5", "x\0y:5", f"{'a' * 300}:5"):
        assert find(text, "auto", "0.0.0.0/0") == [], text


def test_auto_without_the_metadata_of_clouds() -> None:
    assert find("10.0.0.1:5", "auto", auto=PRIVATE) == ["10.0.0.1:5"]
    assert find("[fd00::5]:5", "auto", auto=PRIVATE) == ["[fd00::5]:5"]
    assert find("[fd00:ec2::254]:80", "auto", auto=PRIVATE) == []
    assert find("169.254.169.254:80", "auto", auto=PRIVATE + LOOPBACK) == []
    assert find("100.100.100.200:80", "auto", auto=PRIVATE + LOOPBACK) == []


def test_names_are_allowed_by_their_addresses(names: dict[str, list[str]]) -> None:
    names.update(inside=["10.0.0.5"], both=["127.0.0.1", "8.8.8.8", "10.0.0.5"], outside=["8.8.8.8"])
    assert find("inside:7", "10.0.0.0/8") == ["10.0.0.5:7"]
    assert find("both:7", "10.0.0.0/8") == ["10.0.0.5:7"], "forbidden addresses are omitted"
    assert find("both:7", "auto", "inside") == ["127.0.0.1:7", "10.0.0.5:7"]
    assert find("outside:7", "auto", "inside") == [] == find("nowhere:7", "auto", "inside")
    assert find("10.0.0.5:7", "inside:7") == ["10.0.0.5:7"] and find("10.0.0.5:8", "inside:7") == []


def test_a_name_of_the_list_is_looked_up_once(names: dict[str, list[str]]) -> None:
    names["gpu1"] = ["10.0.0.5", "10.0.0.6"]
    assert find("GPU1.:7424", "gpu1:7424") == [], "a resolver gets names as they are written"
    names["lookups"].clear()
    assert find("gpu1:7424", "Gpu1.:7424") == ["10.0.0.5:7424", "10.0.0.6:7424"]
    assert names["lookups"] == ["gpu1"], "a second lookup could differ"


def test_closed_target_list_resolves_no_names(names: dict[str, list[str]]) -> None:
    names["gpu1"] = ["127.0.0.1"]

    async def work() -> None:
        targets = PeerTargets(["auto"], LOOPBACK)
        targets.close()
        assert await targets.resolve(Address("gpu1", 5)) == []
        assert await targets.resolve(Address("127.0.0.1", 5)) == [Address("127.0.0.1", 5)]

    asyncio.run(work())


# ---- setting ----


@pytest.mark.parametrize(
    ("settings", "networks"),
    [
        ({}, LOOPBACK + PRIVATE),
        ({("listen", "grpc"): ""}, LOOPBACK + PRIVATE),
        ({("tenants",): True}, LOOPBACK + PRIVATE),
        ({("listen", "grpc"): "0.0.0.0:7421", ("insecure",): True}, PRIVATE),
        ({("listen", "grpc"): "gpu1:7421", ("tenants",): True, ("tls",): True}, ()),
        ({("listen", "grpc"): "0.0.0.0:7421", ("tenants",): True, ("insecure",): True}, ()),
    ],
    ids=str,
)
def test_networks_that_auto_allows(settings: dict[Any, Any], networks: Any) -> None:
    flags = dict(settings)
    if flags.pop(("tls",), False):
        flags |= {("tls", "certificate"): "/c.pem", ("tls", "key"): "/k.pem"}
    if flags.pop(("tenants",), False):
        flags[("tenants",)] = [{"name": "alice", "tokens": ["sha256:" + "e" * 64]}]
    assert auto_networks(load(environ={}, flags=flags)[0]) == networks


def test_settings_from_flags_and_environment() -> None:
    assert load(environ={})[0].collectives.peers == ("auto",)
    environ = {"HEARTH_COLLECTIVES_PEERS": '["auto", gpu1:7424, 10.0.0.0/8]'}
    assert load(environ=environ)[0].collectives.peers == ("auto", "gpu1:7424", "10.0.0.0/8")
    assert load(environ={}, flags={("collectives", "peers"): []})[0].collectives.peers == ()
    assert parse_peer("fd00::1").network is not None and parse_peer("Gpu1.Example.").name == "gpu1.example"


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ("10.0.0.1/8", "has host bits set"), ("10.0.0.0/99", "not a network"), ("10.0.0.0/8:7424", "not a network"),
        ("gpu1:0", "cannot be connected to"), (":7424", "cannot be connected to"), ("gpu1:x", "is not an address"),
        ("127.1", "not a peer"), ("", "not a peer"), ("a b", "not a peer"), ("gpu*", "not a peer"), ("*", "not a peer"),
    ],
)  # fmt: skip
def test_mistakes(wrong: str, told: str) -> None:
    with pytest.raises(ConfigError, match=r"collectives\.peers") as error:
        load(environ={}, flags={("collectives", "peers"): ["auto", wrong]})
    assert told in str(error.value) and "\n" not in str(error.value)


def test_too_many() -> None:
    with pytest.raises(ConfigError, match="the maximum is 256"):
        load(environ={}, flags={("collectives", "peers"): ["gpu1"] * 257})
