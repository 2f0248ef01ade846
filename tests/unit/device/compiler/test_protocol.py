"""Messages to and from compile workers: jobs, and the limits of both sides."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.backend.compiler import Assembly, Job, LinkJob, Source
from hearthd.device.compiler import protocol

texts = st.text(max_size=4)
options = st.lists(texts, max_size=2).map(tuple)
headers = st.lists(st.tuples(texts, texts), max_size=2).map(tuple)
sources = st.builds(Source, texts, options, st.lists(texts, max_size=2).map(tuple), headers)
assemblies = st.builds(Assembly, st.binary(max_size=4))
links = st.builds(LinkJob, st.lists(st.one_of(sources, assemblies), max_size=5).map(tuple), options)


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    one, other = socket.socketpair()
    other.setblocking(False)
    with one, other:
        yield one, other


@given(st.one_of(sources, assemblies, links))
def test_unpacked_job_is_equal(job: Job) -> None:
    assert protocol.unpack_job(*protocol.pack_job(job)) == job


def test_options_and_headers_that_sources_of_a_link_share_are_packed_once() -> None:
    shared = tuple((f"{number}.h", f"text {number}") for number in range(150))
    more = (*shared, ("more.h", ""))
    job = LinkJob(
        (
            *(Source(str(number), ("-rdc=true", "-DA=" + "b" * 70_000), (), shared) for number in range(220)),
            Assembly(b"code"),
            Source("more", (), ("f<int>",), more),
        )
    )
    head, parts = protocol.pack_job(job)
    assert len(parts) == 222 + 2 * len(shared) + 2 * len(more)
    assert str(head).count("-DA=") == 1
    unpacked = protocol.unpack_job(head, parts)
    assert isinstance(unpacked, LinkJob) and unpacked == job
    assert len({id(source.headers) for source in unpacked.sources}) == 2


@pytest.mark.parametrize(
    ("head", "parts", "limit"),
    [
        ({}, [b""] * (1 << 16), (1 << 16) - 1),
        ({"x": "y" * (16 << 20)}, [], 16 << 20),
        ({}, [bytes(600), bytes(600)], 1000),
    ],
    ids=["parts", "head", "bytes"],
)
def test_message_beyond_a_limit_is_refused_before_anything_is_sent(
    ends: tuple[socket.socket, socket.socket], head: dict[str, str], parts: list[bytes], limit: int
) -> None:
    with pytest.raises(Refusal) as caught:
        protocol.send(ends[0], head, parts, max_bytes=1000 if limit == 1000 else protocol.MAX_BYTES)
    assert caught.value.reason is Reason.COMPILE_LIMIT and caught.value.fix
    assert caught.value.details["allowed"] == str(limit)
    with pytest.raises(BlockingIOError):
        ends[1].recv(1)


def test_largest_message_is_received(ends: tuple[socket.socket, socket.socket]) -> None:
    parts = [b"", bytes(498), bytes(500)]
    protocol.send(ends[0], {}, parts, max_bytes=1000)
    assert protocol.receive(ends[1], max_bytes=1000) == ({}, parts)
