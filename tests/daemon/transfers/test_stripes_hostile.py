"""Stripes of clients that violate the protocol, and of unauthenticated clients: other sessions are unaffected."""

from __future__ import annotations

import os
import socket
import ssl
import struct
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from hearth.transport.stripe import _within_tls
from hearth_proto import frames
from hearth_proto.frames import HEADER, STRIPE_OFFSET, Kind
from hearth_proto.v1 import commands_pb2 as c
from tests.support.daemon.harness import DaemonProcess, wait_until
from tests.support.daemon.raw import Execute, Raw, refused
from tests.support.daemon.secured import SecuredDaemon
from tests.support.daemon.stripe_end import CHUNK, StripeEnd, open_bulk

SIZE = 3 * CHUNK + 17
BUFFER = 7
TRANSFER = 11

pytestmark = pytest.mark.usefixtures("unharmed")


@pytest.fixture
def raw(daemon: DaemonProcess) -> Iterator[Raw]:
    with Raw(daemon.grpc) as session:
        yield session


@pytest.fixture
def stream(raw: Raw, daemon: DaemonProcess) -> Iterator[Execute]:
    """An attached Execute stream with a buffer of `SIZE` zero bytes; checks that no staging memory is lent at the
    end."""
    with raw.execute() as attached:
        attached.batch(
            c.Command(allocate=c.Allocate(buffer=BUFFER, size=SIZE)),
            c.Command(fill=c.Fill(buffer=BUFFER, size=SIZE, pattern=b"\0")),
        )
        yield attached
    wait_until(lambda: daemon.gauge("staging_bytes") == 0, "the release of all staging memory")


@pytest.fixture
def stripe(raw: Raw, stream: Execute) -> Iterator[StripeEnd]:
    with StripeEnd(open_bulk(raw, stream)) as end:
        yield end.live()


def write(stream: Execute, size: int = SIZE, transfer: int = TRANSFER) -> None:
    stream.batch(c.Command(write=c.Write(buffer=BUFFER, transfer=transfer, size=size)))


def read(stream: Execute, transfer: int = TRANSFER) -> None:
    stream.batch(c.Command(request=1000, read=c.Read(buffer=BUFFER, transfer=transfer, size=SIZE)))


def data() -> bytes:
    return os.urandom(64) * (SIZE // 64) + os.urandom(SIZE % 64)


def spans() -> list[tuple[int, int]]:
    return [(at, min(CHUNK, SIZE - at)) for at in range(0, SIZE, CHUNK)]


# ---- valid transfers ----


def test_upload_over_a_raw_stripe(stream: Execute, stripe: StripeEnd, raw: Raw) -> None:
    """Chunks in reverse order; one credit for each chunk, which is answered by TAKEN."""
    host = data()
    stripe.announce(Kind.UPLOAD, TRANSFER)
    write(stream)
    for at, size in reversed(spans()):
        assert stripe.until(Kind.CREDIT).flags == 1
        stripe.chunk(TRANSFER, at, host[at : at + size])
    assert sorted(stripe.offset() for _ in spans()) == [at for at, _ in spans()]
    assert raw.read(BUFFER, SIZE) == host and not stream.failures()


def test_repeated_chunk(stream: Execute, stripe: StripeEnd, raw: Raw) -> None:
    """The first of the two is used."""
    host = data()
    stripe.announce(Kind.UPLOAD, TRANSFER)
    write(stream)
    stripe.until(Kind.CREDIT)
    stripe.chunk(TRANSFER, 0, host[:CHUNK])
    stripe.until(Kind.CREDIT)
    stripe.chunk(TRANSFER, 0, b"\xff" * CHUNK)
    for at, size in spans()[1:]:
        stripe.until(Kind.CREDIT)
        stripe.chunk(TRANSFER, at, host[at : at + size])
    assert sorted(stripe.offset() for _ in range(len(spans()) + 1)) == [0, *(at for at, _ in spans())]
    assert not stream.failures() and raw.read(BUFFER, SIZE) == host


def test_download_over_a_raw_stripe(stream: Execute, stripe: StripeEnd) -> None:
    """Over two stripes, one of which ends with chunks in flight: the other sends them again."""
    stripe.announce(Kind.DOWNLOAD, TRANSFER)
    read(stream)
    came: dict[int, int] = {}
    while len(came) < len(spans()):
        frame = stripe.until(Kind.STRIPE)
        (at,) = STRIPE_OFFSET.unpack(frame.payload[:8])
        came[at] = len(frame.payload) - 8
        stripe.taken(TRANSFER, at)
    assert came == dict(spans())
    while (response := stream.receive()).WhichOneof("kind") != "result":
        pass
    assert response.result.read.size == SIZE


def test_unacknowledged_chunks_are_sent_again(stream: Execute, stripe: StripeEnd, raw: Raw) -> None:
    with StripeEnd(open_bulk(raw, stream)).live() as other:
        other.announce(Kind.DOWNLOAD, TRANSFER)
        read(stream)
        for _ in range(2):
            other.until(Kind.STRIPE)
    stripe.announce(Kind.DOWNLOAD, TRANSFER)
    came = set()
    while len(came) < len(spans()):
        (at,) = STRIPE_OFFSET.unpack(stripe.until(Kind.STRIPE).payload[:8])
        came.add(at)
        stripe.taken(TRANSFER, at)
    while stream.receive().WhichOneof("kind") != "result":
        pass


def test_rest_of_a_transfer_over_grpc(stream: Execute, stripe: StripeEnd, raw: Raw) -> None:
    """A transfer that was started on a stripe is continued by Upload, from its first byte."""
    from hearth_proto.v1 import device_pb2

    host = data()
    stripe.announce(Kind.UPLOAD, TRANSFER)
    write(stream)
    stripe.until(Kind.CREDIT)
    stripe.chunk(TRANSFER, CHUNK, b"\x11" * CHUNK)
    stripe.offset()
    stripe.socket.close()
    head = {"session_token": raw.token, "device": 0, "transfer": TRANSFER}
    messages = [device_pb2.UploadRequest(data=host[at : at + size], **(head if not at else {})) for at, size in spans()]
    assert raw.device.Upload(iter(messages), timeout=30).received == SIZE
    assert not stream.failures() and raw.read(BUFFER, SIZE) == host


# ---- invalid messages ----


@pytest.mark.parametrize(
    "frame",
    [
        frames.encode(Kind.BATCH, b"\0" * 8),
        frames.encode(Kind.LIVE),
        frames.encode(Kind.UPLOAD, b"\0" * 9),
        frames.encode(Kind.TAKEN, b""),
        frames.encode(Kind.STRIPE, b"\0" * 8),
        frames.encode(Kind.STRIPE, b"\0" * 9, flags=1),
        frames.encode(Kind.STRIPE, b"\0" * 9, channel=3),
        HEADER.pack(63 << 20, Kind.STRIPE, 0, 0, TRANSFER),
        HEADER.pack(0xFFFFFFFF, 0xFFFF, 0, 0, 0),
        b"GET / HTTP/1.1\r\nHost: somewhere\r\n\r\n",
    ],
)
def test_unexpected_frames_close_stripe(stripe: StripeEnd, stream: Execute, frame: bytes) -> None:
    stripe.send(frame)
    assert stripe.ended()
    assert not stream.failures()


def test_a_chunk_without_a_credit(stripe: StripeEnd, stream: Execute) -> None:
    stripe.chunk(TRANSFER, 0, b"x")
    assert stripe.ended()
    assert not stream.failures()


def test_an_unwanted_transfer(stripe: StripeEnd, stream: Execute) -> None:
    """No credit is granted, and no memory is used for it."""
    for transfer in range(100, 100 + 1024):
        stripe.announce(Kind.UPLOAD, transfer)
        stripe.announce(Kind.DOWNLOAD, transfer + 10_000)
    stripe.announce(Kind.UPLOAD, 99)
    assert stripe.refusal().reason == "QUOTA_EXCEEDED"
    stripe.announce(Kind.DOWNLOAD, 98)
    assert stripe.refusal().reason == "QUOTA_EXCEEDED"
    assert not stream.failures()


@pytest.mark.parametrize(
    ("at", "size"), [(0, CHUNK - 1), (1, CHUNK), (4 * CHUNK, CHUNK), (3 * CHUNK, 18), ((1 << 64) - CHUNK, CHUNK)]
)
def test_invalid_chunks_are_refused(stream: Execute, stripe: StripeEnd, at: int, size: int) -> None:
    """Chunks at wrong boundaries, beyond the end, or too long: the write fails with an error."""
    stripe.announce(Kind.UPLOAD, TRANSFER)
    write(stream)
    stripe.until(Kind.CREDIT)
    stripe.chunk(TRANSFER, at, b"x" * size)
    assert stripe.refusal().reason == "OUT_OF_BOUNDS"
    (failure,) = stream.failures()
    assert "write" in str(failure)


def test_a_chunk_longer_than_was_announced(stream: Execute, stripe: StripeEnd) -> None:
    stripe.announce(Kind.UPLOAD, TRANSFER, CHUNK // 2)
    write(stream)
    stripe.until(Kind.CREDIT)
    stripe.chunk(TRANSFER, 0, b"x" * CHUNK)
    assert stripe.refusal().reason == "OUT_OF_BOUNDS"
    assert len(stream.failures()) == 1


@pytest.mark.parametrize("chunk", [0, 1, (64 << 10) - 1, (4 << 20) + 1, (1 << 64) - 1])
def test_sizes_of_chunks_that_are_refused(stripe: StripeEnd, stream: Execute, chunk: int) -> None:
    for kind in (Kind.UPLOAD, Kind.DOWNLOAD):
        stripe.announce(kind, TRANSFER, chunk)
        refusal = stripe.refusal()
        assert refusal.reason == "INVALID_ARGUMENT" and str(chunk) in refusal.message
    assert not stream.failures()


def test_two_sizes_of_chunks(stripe: StripeEnd, stream: Execute) -> None:
    stripe.announce(Kind.UPLOAD, TRANSFER, CHUNK)
    stripe.announce(Kind.UPLOAD, TRANSFER, 2 * CHUNK)
    assert stripe.refusal().reason == "INVALID_ARGUMENT"
    assert not stream.failures()


def test_acknowledgement_of_unsent_bytes_closes_the_stripe(stripe: StripeEnd, stream: Execute) -> None:
    stripe.announce(Kind.DOWNLOAD, TRANSFER)
    read(stream)
    stripe.until(Kind.STRIPE)
    stripe.taken(TRANSFER, 1 << 40)
    assert stripe.ended()


def test_upload_and_download_with_one_number_are_refused(stripe: StripeEnd) -> None:
    stripe.announce(Kind.UPLOAD, TRANSFER)
    stripe.announce(Kind.DOWNLOAD, TRANSFER)
    assert stripe.refusal().reason == "HANDLE_IN_USE"


def test_chunks_of_an_ended_transfer_are_discarded(stripe: StripeEnd, stream: Execute, raw: Raw) -> None:
    """Its command has failed: chunks in transit are discarded, and the stripe continues."""
    stripe.announce(Kind.UPLOAD, TRANSFER)
    write(stream)
    stripe.until(Kind.CREDIT)
    from hearth_proto.v1 import device_pb2

    raw.device.TransferStatus(
        device_pb2.TransferStatusRequest(session_token=raw.token, transfer=TRANSFER, give_up=True), timeout=20
    )
    assert stripe.refusal().reason == "TRANSFER_ABORTED"
    stripe.chunk(TRANSFER, 0, b"x" * CHUNK)  # the credit was valid when the chunk was sent
    stripe.announce(Kind.UPLOAD, TRANSFER)
    assert stripe.refusal().reason == "TRANSFER_ABORTED"
    stripe.announce(Kind.UPLOAD, TRANSFER + 1)
    write(stream, transfer=TRANSFER + 1)
    for at, size in spans():
        stripe.until(Kind.CREDIT)
        stripe.chunk(TRANSFER + 1, at, b"y" * size)
    assert len(stream.failures()) == 1 and raw.read(BUFFER, SIZE) == b"y" * SIZE


# ---- unauthenticated clients ----


def test_invalid_tickets_are_refused(raw: Raw, stream: Execute) -> None:
    offer = open_bulk(raw, stream, 2)
    used, good = offer.tickets
    with StripeEnd(offer, used) as first:
        first.live()
        for ticket in (used, bytes(32), good[:16], good[:31], good + b"x", b""):
            with StripeEnd(offer, ticket) as stranger:
                assert stranger.ended()
        with StripeEnd(offer, good) as second:
            second.live()


def test_silent_connections_do_not_block_stripes(raw: Raw, stream: Execute) -> None:
    offer = open_bulk(raw, stream)
    silent = [socket.create_connection(("127.0.0.1", offer.port)) for _ in range(20)]
    with StripeEnd(offer) as end:
        end.live()
    for each in silent:
        each.close()


def test_too_many_stripes(raw: Raw, stream: Execute) -> None:
    assert refused(open_bulk, raw, stream, 17).reason == "INVALID_ARGUMENT"
    ends = [StripeEnd(open_bulk(raw, stream)).live() for _ in range(32)]
    with StripeEnd(open_bulk(raw, stream)) as one_more:
        assert one_more.ended()
    for end in ends:
        end.socket.close()


# ---- TLS ----


@pytest.fixture(scope="module")
def secured_daemon(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredDaemon]:
    lent = SecuredDaemon(cache, tmp_path_factory.mktemp("tls"))
    yield lent
    lent.close()


@pytest.fixture
def secured(secured_daemon: SecuredDaemon) -> Iterator[tuple[DaemonProcess, Raw, Execute]]:
    daemon = secured_daemon.lend()
    with Raw(daemon.unix, secured_daemon.token) as raw:
        raw.channel.close()
        credentials = grpc.ssl_channel_credentials(secured_daemon.authority.pem.read_bytes())
        raw.channel = grpc.secure_channel(daemon.grpc, credentials)
        from hearth_proto.v1 import device_pb2_grpc, node_pb2_grpc

        raw.node = node_pb2_grpc.NodeServiceStub(raw.channel)
        raw.device = device_pb2_grpc.DeviceServiceStub(raw.channel)
        with raw.execute() as stream:
            yield daemon, raw, stream


def test_the_second_half_of_the_ticket(secured: tuple[DaemonProcess, Raw, Execute]) -> None:
    _, raw, stream = secured
    offer = open_bulk(raw, stream, 4)
    assert offer.certificate
    for index, shown in enumerate((bytes(16), offer.tickets[0][16:] + b"x", offer.tickets[3][16:])):
        with StripeEnd(offer, offer.tickets[index][:16]) as end:
            inside = _within_tls(end.socket, offer.certificate)
            inside.sendall(frames.encode(Kind.TICKET, shown))
            end.socket = inside
            assert end.ended()
    with StripeEnd(offer, offer.tickets[3][:16]) as end:
        inside = _within_tls(end.socket, offer.certificate)
        inside.sendall(frames.encode(Kind.TICKET, offer.tickets[3][16:]))
        end.socket = inside
        end.live()


def test_plain_text_where_tls_is_spoken(secured: tuple[DaemonProcess, Raw, Execute]) -> None:
    _, raw, stream = secured
    offer = open_bulk(raw, stream, 3)
    with StripeEnd(offer, offer.tickets[0]) as whole:
        assert whole.ended()  # the secret half of a ticket in plain text is not accepted
    with StripeEnd(offer, offer.tickets[1][:16]) as plain:
        plain.send(frames.encode(Kind.TICKET, offer.tickets[1][16:]) + b"\0" * 64)
        assert plain.ended()


def test_a_handshake_that_stalls(secured: tuple[DaemonProcess, Raw, Execute]) -> None:
    """Other connections continue in the meantime; the stalled one is closed after a timeout."""
    daemon, raw, stream = secured
    offer = open_bulk(raw, stream, 2)
    with StripeEnd(offer, offer.tickets[0][:16]) as silent:
        wait_until(lambda: daemon.gauge("stripes") == 1, "the device process to have it")
        with StripeEnd(offer, offer.tickets[1][:16]) as end:
            inside = _within_tls(end.socket, offer.certificate)
            inside.sendall(frames.encode(Kind.TICKET, offer.tickets[1][16:]))
            end.socket = inside
            end.live()
        assert silent.ended()
    wait_until(lambda: daemon.gauge("stripes") == 0, "both to be gone")


def test_the_certificate_is_the_process_s_own(secured: tuple[DaemonProcess, Raw, Execute]) -> None:
    daemon, raw, stream = secured
    certificate = open_bulk(raw, stream).certificate
    assert certificate == open_bulk(raw, stream).certificate
    pem = ssl.DER_cert_to_PEM_cert(certificate)
    assert pem not in daemon.config_path.read_text()
    assert certificate not in Path(f"/proc/{daemon.device_pid()}/cmdline").read_bytes()


def test_oversized_length_closes_stripe(stripe: StripeEnd) -> None:
    stripe.send(struct.pack("<IHHIQ", 0xFFFFFFFF, Kind.STRIPE, 0, 0, 1) + b"\xff" * 64)
    assert stripe.ended()
