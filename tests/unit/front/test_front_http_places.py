"""Admission of connections: who is displaced, and what is kept for probes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hearthd.front.connections.peers import group_of
from hearthd.front.http.places import Places


class Fake:
    def __init__(self) -> None:
        self.displaced = 0

    def displace(self) -> None:
        self.displaced += 1


def test_the_one_that_waits_longest_makes_room() -> None:
    places: Places[Fake] = Places(3, 2, reserve=1)
    a, b, c, d = (Fake() for _ in range(4))
    assert places.enter(a, "10.0.0.1") == places.enter(b, "10.0.0.1") == (None, False)
    assert places.enter(c, "10.0.0.1") == (a, False) and a.displaced == 1 and len(places) == 2
    places.works(b)
    assert places.enter(d, "10.0.0.1") == (c, False), "b is at work"
    places.works(d)
    probe, late = Fake(), Fake()
    assert places.enter(probe, "10.0.0.1") == (None, True), "nobody waits: for probes only"
    places.works(probe)
    with pytest.raises(OverflowError):
        places.enter(late, "10.0.0.1")
    other = Fake()
    assert places.enter(other, "10.0.0.2") == (None, True) or len(places) == 4
    places.waits(b)
    assert places.enter(Fake(), "10.0.0.1")[0] is b
    for each in (a, b, c, d, probe, other):
        places.leave(each)
        places.leave(each)
    assert b.displaced == c.displaced == 1 and not d.displaced


def test_another_address_gets_in_beside_one_that_takes_all() -> None:
    places: Places[Fake] = Places(8, 4, reserve=2)
    for _ in range(100):
        places.enter(Fake(), "10.0.0.1")
    assert len(places) == 4
    assert all(places.enter(Fake(), f"10.0.1.{i}") == (None, False) for i in range(4))
    displaced, probes_only = places.enter(Fake(), "10.0.2.1")
    assert displaced is not None and not probes_only and len(places) == 8
    assert places.displace() is not None and len(places) == 7


def test_an_ipv6_network_counts_as_one_address() -> None:
    assert group_of("2001:db8::1") == group_of("2001:db8::ffff:1") != group_of("2001:db8:0:1::1")
    assert group_of("::ffff:10.0.0.1") == group_of("10.0.0.1") != group_of("10.0.0.2")
    assert group_of("fe80::1%eth0") == group_of("fe80::2%eth0") and group_of("") == ""


@given(st.lists(st.tuples(st.sampled_from("ewxl"), st.integers(0, 30), st.integers(0, 3)), max_size=200))
def test_the_accounts_are_right_whatever_happens(steps: list[tuple[str, int, int]]) -> None:
    places: Places[Fake] = Places(6, 3, reserve=1)
    inside: dict[int, Fake] = {}
    for step, number, address in steps:
        each = inside.get(number)
        if step == "e" and each is None:
            each = Fake()
            try:
                displaced, _ = places.enter(each, str(address))
            except OverflowError:
                continue
            inside[number] = each
            if displaced is not None:
                assert displaced.displaced == 1
                inside = {key: value for key, value in inside.items() if value is not displaced}
        elif each is not None:
            {"w": places.waits, "x": places.works, "l": places.leave, "e": places.waits}[step](each)
            if step == "l":
                del inside[number]
        assert len(places) == len(inside) <= 7
        assert not any(value.displaced for value in inside.values())
    for each in inside.values():
        places.leave(each)
    assert not len(places) and not places._of and not places._waiting and not places._order
