"""A coordinator that is connected and sends nothing (because it is stopped or hung): operations of its group still fail
in time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from hearth_proto.reasons import Reason
from hearthd.front.collectives.router import CollectiveRouter
from tests.support.front.fake_peers import pair, refusal_in, run
from tests.support.timing import LATE


def test_a_silent_coordinator(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        async with pair(answer_margin=0.1) as both:
            await both.run(1)
            with monkeypatch.context() as silent:
                received: list[Any] = []
                silent.setattr(CollectiveRouter, "present", lambda *arguments, **_: received.append(arguments))
                begin = asyncio.get_running_loop().time()
                both.present(2, timeout=0.2)
                refusal = refusal_in(await both.ranks[1].wait_for("fail", sequence=2))
                assert 0.25 < asyncio.get_running_loop().time() - begin < 0.3 + LATE
                assert refusal.reason == Reason.COLLECTIVE_TIMEOUT and "node 0" in refusal.message and received
                assert not both.ranks[0].ops("fail")
            await both.run(3)  # it was only busy, and continues

    run(work())


def test_the_others_do_not_wait_for_a_rank_that_has_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        async with pair(answer_margin=0.05) as both:
            await both.run(1)
            delayed: list[Any] = []
            withdrawn = asyncio.Event()
            withdraw = CollectiveRouter.withdraw
            with monkeypatch.context() as busy:
                busy.setattr(CollectiveRouter, "present", lambda *arguments, **_: delayed.append(arguments))
                busy.setattr(CollectiveRouter, "withdraw", lambda *arguments: (withdraw(*arguments), withdrawn.set()))
                both.present(2, timeout=0.05)
                await both.ranks[1].wait_for("fail", sequence=2)
                await withdrawn.wait()
            (own,) = [arguments for arguments in delayed if arguments[3].node == 0]
            own[-1]["timeout"] = 60.0
            CollectiveRouter.present(*own)
            refusal = refusal_in(await both.ranks[0].wait_for("fail", sequence=2))
            assert refusal.reason == Reason.COMMUNICATOR_FAILED and refusal.details["failed"] == "1"
            await both.run(3)

    run(work())


def test_an_answer_in_time_is_the_only_one() -> None:
    async def work() -> None:
        async with pair(answer_margin=0.05) as both:
            await both.run(1)
            both.present(2, timeout=0.1)
            for link in both.ranks:
                await link.wait_for("go", sequence=2)
            both.ranks[1].present(both.sessions[1], both.group, 3, timeout=0.1)
            await both.ranks[1].wait_for("fail", sequence=3)
            await asyncio.sleep(0.3)  # longer than all timers
            assert not both.ranks[1].ops("fail")

    run(work())
