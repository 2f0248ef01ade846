"""Pure policy: decaying penalties, strangers to be closed, shares of descriptors, and names of peers."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from hearthd.front.config.front_limits import ConnectionSettings
from hearthd.front.connections import descriptors
from hearthd.front.connections.holding import AdmissionOrder
from hearthd.front.connections.peers import group_of, grpc_name, normal_name
from hearthd.front.connections.penalties import HALF_LIFE, Penalties
from hearthd.front.connections.strangers import (
    CALLS,
    PENALTY_DIVISOR,
    PENALTY_GRACE,
    SETTLED,
    UnauthenticatedConnection,
    UnauthenticatedLimits,
    connections_to_close,
)

BOUNDS = UnauthenticatedLimits(max_strangers=16, max_strangers_per_peer=8, timeout=10.0, bytes=1 << 20)
PEERS = st.sampled_from(["10.0.0.1", "10.0.0.2", "10.0.0.3", "uid:7"])
STRANGERS = st.lists(
    st.builds(
        UnauthenticatedConnection,
        number=st.integers(3, 1000),
        inode=st.integers(1, 1 << 31),
        peer=PEERS,
        name=st.just("x"),
        since=st.floats(0, 100),
        authenticated=st.booleans(),
        closed=st.booleans(),
        bytes=st.integers(0, 4 << 20),
    ),
    max_size=60,
)


# ---- penalties ----


@given(st.lists(st.tuples(PEERS, st.floats(0, 5)), max_size=50))
def test_score_never_exceeds_the_points_given_and_decays_to_nothing(points: list[tuple[str, float]]) -> None:
    penalties, given_points = Penalties(), dict.fromkeys((peer for peer, _ in points), 0.0)
    for now, (peer, value) in enumerate(points):
        penalties.add(peer, float(now), value)
        given_points[peer] += value
        assert penalties.score(peer, float(now)) <= given_points[peer] + 1e-9
    assert not penalties.worst(len(points) + 20 * HALF_LIFE, 10)
    assert len(penalties) == 0


@given(st.lists(st.integers(0, 500), max_size=300))
def test_table_is_bounded_and_keeps_the_worst(peers: list[int]) -> None:
    penalties = Penalties(max_peers=32)
    for _ in range(5):
        penalties.add("worst", 0.0)
    for number in peers:
        penalties.add(f"10.0.0.{number}", 0.0, 0.5)
    assert len(penalties) <= 32
    assert penalties.is_penalized("worst", 0.0)


def test_penalized_peers_are_listed_worst_first() -> None:
    penalties = Penalties()
    for peer, points in (("10.0.0.1", 4.0), ("10.0.0.2", 9.0), ("10.0.0.3", 1.0), ("10.0.0.4", 6.0)):
        penalties.add(peer, 0.0, points)
    assert penalties.worst(0.0, 10) == ["10.0.0.2", "10.0.0.4", "10.0.0.1"]
    assert penalties.worst(0.0, 1) == ["10.0.0.2"]


def test_a_penalty_ends_two_half_lives_after_the_last_misbehaviour() -> None:
    penalties = Penalties()
    for second in range(1000):
        penalties.add("10.0.0.1", float(second))
    assert penalties.is_penalized("10.0.0.1", 999 + 1.9 * HALF_LIFE)
    assert not penalties.is_penalized("10.0.0.1", 999 + 2.1 * HALF_LIFE)


# ---- strangers ----


@given(STRANGERS, st.floats(0, 120))
def test_no_connection_with_a_credential_is_closed_and_the_limits_hold(
    strangers: list[UnauthenticatedConnection], now: float
) -> None:
    strangers = [each for each in strangers if each.since <= now]
    closing = dict(connections_to_close(strangers, BOUNDS, Penalties(), now))
    assert not [each for each in closing if each.authenticated or each.closed]
    left = [each for each in strangers if not each.authenticated and not each.closed and each not in closing]
    assert len(left) <= BOUNDS.max_strangers
    for each in left:
        assert each.bytes <= BOUNDS.bytes and now - each.since <= BOUNDS.timeout
    for peer in {each.peer for each in left}:
        settled = [each for each in left if each.peer == peer and now - each.since > SETTLED]
        assert len(settled) <= BOUNDS.max_strangers_per_peer


@given(st.integers(1, 30), st.integers(17, 200))
def test_many_connections_of_one_peer_do_not_displace_others(few: int, many: int) -> None:
    few = min(few, BOUNDS.max_strangers // 2)
    honest = [UnauthenticatedConnection(n, n, "10.0.0.1", "x", 0.0) for n in range(few)]
    crowd = [UnauthenticatedConnection(n, n, "10.0.0.2", "x", 0.5) for n in range(many)]
    closing = dict(connections_to_close([*honest, *crowd], BOUNDS, Penalties(), 0.6))
    assert not [each for each in closing if each.peer == "10.0.0.1"]


def test_oldest_connection_is_closed_first() -> None:
    crowd = [UnauthenticatedConnection(n, n, "10.0.0.2", "x", n / 100) for n in range(20)]
    closing = dict(connections_to_close(crowd, BOUNDS, Penalties(), 0.3))
    assert [each.number for each in closing] == [0, 1, 2, 3]
    assert set(closing.values()) == {"strangers"}


def test_a_penalized_peer_has_tighter_bounds_and_a_chance() -> None:
    penalties = Penalties()
    for _ in range(4):
        penalties.add("10.0.0.2", 0.0)
    loud = UnauthenticatedConnection(1, 1, "10.0.0.2", "x", 0.0, bytes=BOUNDS.bytes // PENALTY_DIVISOR + 1)
    fresh = UnauthenticatedConnection(2, 2, "10.0.0.2", "x", 0.0)
    assert connections_to_close([loud, fresh], BOUNDS, penalties, 0.1) == [(loud, "flood")]
    assert connections_to_close([fresh], BOUNDS, penalties, PENALTY_GRACE + 0.1) == [(fresh, "penalty")]


def test_budget_of_calls_without_a_credential_recovers_with_time() -> None:
    probe, flood = (
        UnauthenticatedConnection(1, 1, "10.0.0.1", "x", 0.0),
        UnauthenticatedConnection(2, 2, "10.0.0.1", "x", 0.0),
    )
    for _ in range(CALLS + 1):
        flood.add_cost(1, 0.0)
    for second in range(1000):
        probe.add_cost(1, float(second))
    probe.probed_at = 999.0
    flood.probed_at = 999.0
    assert connections_to_close([probe, flood], BOUNDS, Penalties(), 1000.0) == [(flood, "flood")]


def test_wait_of_a_held_connection_is_bounded() -> None:
    penalties = Penalties()
    penalties.add("10.0.0.2", 0.0, 5.0)
    held = UnauthenticatedConnection(1, 1, "10.0.0.2", "x", 0.0, held=True)
    assert not connections_to_close([held], BOUNDS, penalties, BOUNDS.timeout - 0.1)
    assert connections_to_close([held], BOUNDS, penalties, BOUNDS.timeout + 0.1) == [(held, "penalty")]


# ---- admission of held connections ----


@given(st.lists(st.tuples(PEERS, st.floats(0, 5)), max_size=40))
def test_each_held_connection_has_its_turn_and_no_two_have_the_same(arrivals: list[tuple[str, float]]) -> None:
    turns = AdmissionOrder(period=0.05)
    waiting = [UnauthenticatedConnection(n, n, peer, "x", since) for n, (peer, since) in enumerate(arrivals)]
    let_in: list[tuple[float, UnauthenticatedConnection]] = []
    for step in range(10 * len(waiting) + 1):
        now = 10.0 + step / 100
        chosen = turns.next(waiting, now)
        if chosen is not None:
            let_in.append((now, chosen))
            waiting.remove(chosen)
    assert not waiting
    assert all(after - before >= 0.05 - 1e-9 for (before, _), (after, _) in pairwise(let_in))
    for peer in {peer for peer, _ in arrivals}:
        since = [each.since for _, each in let_in if each.peer == peer]
        assert since == sorted(since)


def test_many_held_connections_of_one_peer_delay_another_by_one_turn() -> None:
    turns = AdmissionOrder(period=1.0)
    crowd = [UnauthenticatedConnection(n, n, "10.0.0.2", "x", 0.0) for n in range(50)]
    assert turns.next(crowd, 10.0) in crowd
    honest = UnauthenticatedConnection(99, 99, "10.0.0.1", "x", 10.5)
    assert turns.next([*crowd, honest], 10.6) is None
    assert turns.next([*crowd, honest], 11.0) is honest
    assert turns.next(crowd, 12.0) in crowd


# ---- descriptors ----


@given(st.integers(16, 1 << 20), st.integers(0, 200), st.integers(0, 64))
def test_shares_fit_the_limit(limit: int, used: int, devices: int) -> None:
    shares = descriptors.budget(limit, used, devices).shares
    left = limit - used - descriptors.RESERVE - descriptors.DEVICE * devices
    assert min(shares.values()) >= descriptors.MIN_CONNECTIONS
    assert sum(shares.values()) <= max(left, 0) + descriptors.MIN_CONNECTIONS * len(shares)


@given(st.integers(1, 9000), st.integers(0, 200), st.integers(0, 64))
def test_needed_limit_is_the_smallest_that_is_sufficient(asked: int, used: int, devices: int) -> None:
    def lasting(limit: int) -> int:
        shares = descriptors.budget(limit, used, devices).shares
        return min(shares["grpc"], shares["grpc_unix"], shares["call"])

    needed = descriptors.budget(1024, used, devices, asked).needed
    assert lasting(needed) >= asked
    assert needed == descriptors.RECOMMENDED_LIMIT or lasting(needed - 1) < asked
    assert not descriptors.budget(needed, used, devices, asked).is_too_low
    assert descriptors.budget(needed - 1, used, devices, asked).is_too_low


def test_requested_connections_follow_the_settings() -> None:
    assert ConnectionSettings().requested == 0 and descriptors.budget(2000, 48, 8).is_too_low is False
    assert ConnectionSettings(max=3000).requested == 3000 and ConnectionSettings(max_strangers=700).requested == 1400
    assert ConnectionSettings(max=100, max_strangers=700).requested == 100


# ---- peers ----


def test_names_of_peers_agree() -> None:
    assert normal_name("ipv4:10.0.0.1:50") == grpc_name("10.0.0.1", 50) == grpc_name("::ffff:10.0.0.1", 50)
    assert normal_name("ipv6:%5B::1%5D:50") == grpc_name("::1", 50)
    assert normal_name("ipv6:[fe80::1%25eth0]:50") == grpc_name("fe80::1%eth0", 50)
    assert normal_name("unix:") == normal_name("unix:/run/x") == normal_name("") == ""


def test_limits_count_a_network_of_ipv6_as_one_peer() -> None:
    assert group_of("2001:db8::1") == group_of("2001:db8::ffff:2")
    assert group_of("2001:db8::1") != group_of("2001:db8:0:1::1")
    assert group_of("::ffff:10.0.0.1") == "10.0.0.1"
    assert group_of("uid:7") == "uid:7"


@given(st.text(max_size=40))
def test_any_text_has_a_name_and_a_group(text: str) -> None:
    normal_name(text)
    assert isinstance(group_of(text), str)
