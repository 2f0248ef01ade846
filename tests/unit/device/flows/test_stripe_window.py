"""Distribution of chunks over stripes: random programs, broken stripes, and chunks that arrive twice."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hearthd.device.flows.stripe_state import StripeChunk, StripedDownload, StripedUpload
from hearthd.device.flows.stripe_window import WINDOW, StripeStaging, UnpinnedSlot

CHUNK = 10


class FakeStripe:
    """A stripe that keeps the memory lent to it."""

    def __init__(self) -> None:
        self.granted: deque[Any] = deque()
        self.out: deque[tuple[int, Any, int]] = deque()

    def grant(self, _transfer: int, host: Any) -> None:
        self.granted.append(host)

    def revoke(self, _transfer: int) -> list[Any]:
        revoked = list(self.granted)
        self.granted.clear()
        return revoked

    def put(self, frame: bytes) -> None:
        pass

    def put_chunk(self, _transfer: int, offset: int, host: Any, size: int) -> None:
        self.out.append((offset, host, size))


class Lender:
    """Staging memory that counts the lent buffers."""

    def __init__(self, cap: int) -> None:
        self.out: set[Any] = set()
        self.stripe_staging = StripeStaging(cap, self.out.discard, lambda: None)

    def lend(self) -> UnpinnedSlot:
        host = UnpinnedSlot(CHUNK)
        self.out.add(host)
        return host


Steps = st.lists(st.tuples(st.sampled_from(["come", "twice", "lose", "join"]), st.integers(0, 3)), max_size=60)


@given(st.integers(1, 200), Steps)
def test_an_upload(size: int, steps: list[tuple[str, int]]) -> None:
    lender = Lender(1 << 20)
    upload = StripedUpload(1, CHUNK, lender.stripe_staging)
    upload.begin(size)
    stripes = [FakeStripe() for _ in range(4)]
    for stripe in stripes:
        upload.join(stripe)
    missing, arrived_chunks = set(range(upload.cut.count)), set()

    def pump() -> None:
        while upload.arrived_chunks:
            offset, host, _ = upload.arrived_chunks.popleft()
            assert offset not in arrived_chunks, "passed to the device twice"
            arrived_chunks.add(offset)
            lender.out.discard(host)
        while upload.missing_credits > 0 and (stripe := upload.next_stripe()) is not None and upload.room:
            upload.grant(stripe, lender.lend())

    def arrive(stripe: FakeStripe, index: int) -> None:
        offset, length = upload.cut.span(index)
        upload.arrived(stripe, StripeChunk(1, offset, stripe.granted.popleft(), length, 0.0), 0.0)
        missing.discard(index)

    pump()
    for event, number in steps:
        stripe = stripes[number]
        if event == "come" and stripe.granted and missing:
            arrive(stripe, min(missing))
        elif event == "twice" and stripe.granted and arrived_chunks:
            arrive(stripe, min(arrived_chunks) // CHUNK)
        elif event == "lose":
            for host in stripe.revoke(1):
                lender.stripe_staging.release(host)
            upload.lose(stripe)
            stripes[number] = FakeStripe()
        elif event == "join":
            upload.join(stripe)
        pump()
        assert all(len(candidate.granted) <= WINDOW for candidate in stripes)
    for stripe in stripes:
        upload.join(stripe)
    pump()
    while missing:
        stripe = next(candidate for candidate in stripes if candidate.granted)  # at least one stripe can always deliver
        arrive(stripe, missing.pop())
        pump()
    assert arrived_chunks == {upload.cut.span(index)[0] for index in range(upload.cut.count)}
    upload.drop()
    assert not lender.out and lender.stripe_staging.bytes == 0


@given(st.integers(1, 200), Steps)
def test_a_download(size: int, steps: list[tuple[str, int]]) -> None:
    lender = Lender(1 << 20)
    download = StripedDownload(1, CHUNK, lender.stripe_staging)
    download.begin(size)
    stripes = [FakeStripe() for _ in range(4)]
    for stripe in stripes:
        download.join(stripe)
    received: set[int] = set()

    def pump() -> None:
        while (index := download.peek()) is not None and (stripe := download.next_stripe()) is not None:
            host = lender.lend()
            download.issue(stripe, host)
            download.fetched(stripe, index, host)

    def deliver(stripe: FakeStripe, is_confirmed: bool) -> None:
        offset, host, _ = stripe.out.popleft()
        lender.stripe_staging.release(host)
        download.sent(stripe, 0.0)
        if is_confirmed:
            received.add(offset)
            download.chunk_received(stripe, offset)

    pump()
    for event, number in steps:
        stripe = stripes[number]
        if event in ("come", "twice") and stripe.out:
            deliver(stripe, event == "come")
        elif event == "lose":
            for _, host, _ in stripe.out:
                lender.stripe_staging.release(host)
            download.lose(stripe)
            stripes[number] = FakeStripe()
        elif event == "join":
            download.join(stripe)
        pump()
    for index, stripe in enumerate(stripes):  # chunks that were sent but not received are sent again
        for _, host, _ in stripe.out:
            lender.stripe_staging.release(host)
        download.lose(stripe)
        stripes[index] = FakeStripe()
        download.join(stripes[index])
    pump()
    while not download.done:
        deliver(next(candidate for candidate in stripes if candidate.out), is_confirmed=True)
        pump()
    assert received == {download.cut.span(index)[0] for index in range(download.cut.count)}
    assert not lender.out and lender.stripe_staging.bytes == 0


def test_acknowledgement_of_unsent_chunks_is_refused() -> None:
    lender = Lender(1 << 20)
    download = StripedDownload(1, CHUNK, lender.stripe_staging)
    download.begin(35)
    stripe_1, stripe_2 = FakeStripe(), FakeStripe()
    download.join(stripe_1)
    host = lender.lend()
    download.issue(stripe_1, host)
    for stripe, offset in ((stripe_1, 10), (stripe_1, 5), (stripe_1, 1 << 50), (stripe_2, 0)):
        with pytest.raises(ValueError):
            download.chunk_received(stripe, offset)
    download.chunk_received(stripe_1, 0)
    with pytest.raises(ValueError):
        download.chunk_received(stripe_1, 0)


def test_the_first_chunk_of_a_transfer_always_finds_room() -> None:
    lender = Lender(2 * CHUNK)
    greedy, modest = StripedUpload(1, CHUNK, lender.stripe_staging), StripedUpload(2, CHUNK, lender.stripe_staging)
    for upload in (greedy, modest):
        upload.begin(100)
        upload.join(FakeStripe())
    while greedy.room:
        stripe = next(iter(greedy.windows))
        greedy.windows[stripe].limit = WINDOW
        greedy.grant(stripe, lender.lend())
    assert greedy.under_way == 2 and modest.room
    modest.grant(next(iter(modest.windows)), lender.lend())
    assert not modest.room


def test_a_slow_stripe_has_one_chunk_at_a_time() -> None:
    lender = Lender(1 << 20)
    upload = StripedUpload(1, CHUNK, lender.stripe_staging)
    upload.begin(1000)
    stripe = FakeStripe()
    upload.join(stripe)
    for seconds, room in ((0.01, WINDOW), (5.0, 1), (0.01, WINDOW)):
        while (free := upload.next_stripe()) is not None:
            upload.grant(free, lender.lend())
        while stripe.granted:
            index = len(upload.arrived_chunks)
            offset, size = upload.cut.span(index)
            upload.arrived(stripe, StripeChunk(1, offset, stripe.granted.popleft(), size, 0.0), seconds)
        assert upload.windows[stripe].room == room
