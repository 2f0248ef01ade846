"""Assignment of sessions to processes of a device: shared, by tenant, dedicated, spare, idle, and too many."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from types import SimpleNamespace
from typing import Any

import pytest

from hearth_proto.frames import Kind
from hearth_proto.reasons import Reason, Refusal
from hearthd.front.links.link import DeviceLink
from hearthd.front.sessions.session import Session
from hearthd.front.supervisor.device import FENCED, LOST, SERVING
from hearthd.front.supervisor.isolation import ALL_SESSIONS, WorkerKey
from hearthd.front.supervisor.worker import Worker
from hearthd.front.supervisor.worker_set import WorkerSet
from hearthd.front.tenancy.tenants import EVERYONE, Right, Tenant
from tests.support.front.execute_batches import batch
from tests.support.front.fake_device import FakeDevice, FakeLauncher
from tests.support.front.fixture import run, until
from tests.support.front.isolated_workers import BY_TENANT, PATIENT, Node, X, Y, node


async def lost(node: Node, session: Session) -> Refusal:
    """Returns the refusal that a session receives after the end of its process."""
    await until(lambda: 0 in session.ended and not session.ended[0].loss_reported)
    with pytest.raises(Refusal) as caught:
        await node.device.channel(session)
    return caught.value


def test_sessions_share_one_lasting_process_without_tenants() -> None:
    async def scenario() -> None:
        async with node(dataclasses.replace(PATIENT, idle_timeout=0.02)) as n:
            one, other = n.session(X), n.session(Y)
            assert [await n.generation(one), await n.generation(other)] == [1, 1]
            for session in (one, other):
                await n.sessions.close(session, "done")
            await asyncio.sleep(0.1)  # nothing happens, so there is no event to wait for
            assert n.running == [1] and n.device.state == SERVING

    run(scenario())


def test_dedicated_session_has_a_separate_process_which_ends_with_it() -> None:
    async def scenario() -> None:
        async with node() as n:
            shared, own, third = n.session(), n.session(dedicated=True), n.session(dedicated=True)
            assert [await n.generation(each) for each in (shared, own, third, own)] == [1, 2, 3, 2]
            n.process(2).die()
            refusal = await lost(n, own)
            assert refusal.reason == Reason.DEVICE_LOST and refusal.details["generation"] == "2"
            assert await n.generation(own) == 4
            assert n.device.state == SERVING and n.device.generation == 1
            assert [await n.generation(each) for each in (shared, third)] == [1, 3], "no other session has noticed"
            assert n.lost == [(0, 2)]
            described = n.device.describe(EVERYONE).processes
            assert {(each.session_id, each.generation) for each in described} == {("", 1), (own.id, 4), (third.id, 3)}
            await n.sessions.close(own, "done")
            await until(lambda: n.running == [1, 3])
            assert n.process(4).exit_code == 0, "it was asked to end, and did"
            assert n.device.restarts == {"signal": 1}

    run(scenario())


def test_every_end_of_a_process_is_reported_once() -> None:
    async def scenario() -> None:
        ended: list[tuple[int, bool]] = []
        async with node(PATIENT) as n:
            n.supervisor.device_ended = lambda link: ended.append((link.generation, bool(link.channels)))
            own = n.session(dedicated=True)
            assert await n.generation(own) == 2
            await n.sessions.close(own, "done")
            await until(lambda: ended)
            n.process(1).die()
            await until(lambda: len(ended) == 2)
            assert await n.generation(n.session()) == 3
        assert ended == [(2, False), (1, False), (3, False)] and n.lost == [(0, 1)]

    run(scenario())


def test_the_first_process_goes_to_the_first_tenant_and_others_have_their_own() -> None:
    async def scenario() -> None:
        async with node(BY_TENANT) as n:
            assert n.device.state == SERVING and n.running == [1]
            x, x2, y = n.session(X), n.session(X), n.session(Y)
            assert [await n.generation(each) for each in (x, y, x2)] == [1, 2, 1]
            n.process(1).die()
            assert (await lost(n, x)).details["generation"] == "1"
            assert (await lost(n, x2)).details["generation"] == "1"
            assert await n.generation(y) == 2 and 0 not in y.ended
            assert [await n.generation(each) for each in (x, x2)] == [3, 3]

    run(scenario())


def test_shared_by_configuration() -> None:
    async def scenario() -> None:
        async with node(dataclasses.replace(BY_TENANT, by_tenant=False)) as n:
            assert [await n.generation(n.session(tenant)) for tenant in (X, Y)] == [1, 1]

    run(scenario())


def test_processes_of_other_tenants_are_hidden() -> None:
    async def scenario() -> None:
        async with node(BY_TENANT) as n:
            x, y, own = n.session(X), n.session(Y), n.session(Y, dedicated=True)
            for session in (x, y, own):
                await n.generation(session)
            operator = Tenant("boss")
            plain = Tenant("x", rights=frozenset(Right) - {Right.ADMIN, Right.OBSERVE})
            assert [each.generation for each in n.device.describe(plain).processes] == [1]
            assert n.device.describe(plain).generation == 1
            other = Tenant("y", rights=plain.rights)
            assert {each.session_id for each in n.device.describe(other).processes} == {"", own.id}
            assert n.device.describe(other).generation == 2
            stranger = n.device.describe(Tenant("z", rights=plain.rights))
            assert not stranger.processes and not stranger.pid and stranger.state == SERVING
            everything = n.device.describe(operator)
            assert {each.tenant for each in everything.processes} == {"x", "y"} and len(everything.processes) == 3

    run(scenario())


def test_unused_process_ends_and_is_started_again() -> None:
    async def scenario() -> None:
        async with node(dataclasses.replace(BY_TENANT, idle_timeout=0.05)) as n:
            x = n.session(X)
            assert await n.generation(x) == 1
            await asyncio.sleep(0.12)  # nothing happens while a session has a channel
            assert n.running == [1]
            await n.sessions.close(x, "done")
            await until(lambda: not n.running)
            assert n.process(1).exit_code == 0
            assert n.device.state == SERVING and n.device.restarts == {} and n.lost == []
            assert await n.generation(n.session(X)) == 2

    run(scenario())


def test_unused_first_process_ends() -> None:
    async def scenario() -> None:
        async with node(dataclasses.replace(BY_TENANT, idle_timeout=0.05)) as n:
            await until(lambda: not n.running)
            assert n.device.state == SERVING, "the process has shown that the device works"
            assert await n.generation(n.session(X)) == 2

    run(scenario())


def test_no_more_processes_than_allowed() -> None:
    async def scenario() -> None:
        async with node(dataclasses.replace(PATIENT, max_processes=2)) as n:
            own, third = n.session(dedicated=True), n.session(dedicated=True)
            await n.generation(own)
            with pytest.raises(Refusal) as caught:
                await n.device.channel(third)
            assert caught.value.reason == Reason.DEVICE_UNAVAILABLE and caught.value.retry_after_s
            assert caught.value.details["allowed"] == "2"
            await n.sessions.close(own, "done")
            assert await n.generation(third) == 3, "it waits for the process that is ending"

    run(scenario())


def test_an_idle_process_makes_room() -> None:
    async def scenario() -> None:
        async with node(dataclasses.replace(BY_TENANT, max_processes=1)) as n:
            x, y = n.session(X), n.session(Y)
            assert await n.generation(x) == 1
            await n.sessions.close(x, "done")
            assert await n.generation(y) == 2 and n.running == [2]
            assert n.process(1).exit_code == 0

    run(scenario())


def test_a_spare_process_replaces_a_lost_one_immediately() -> None:
    async def scenario() -> None:
        launcher = FakeLauncher()
        async with node(dataclasses.replace(PATIENT, spare=True), launcher) as n:
            session = n.session()
            assert await n.generation(session) == 1
            await until(lambda: [worker.key for worker in n.device.running].count(None))
            launcher.ready = False  # the next process takes time to become ready
            n.process(1).die()
            assert (await lost(n, session)).details["generation"] == "1"
            assert await n.generation(session) == 2
            assert n.device.generation == 2 and n.device.restarts == {"signal": 1}
            launcher.ready = True

    run(scenario())


def test_losses_count_across_spares() -> None:
    async def scenario() -> None:
        async with node(dataclasses.replace(PATIENT, spare=True, max_restarts=2)) as n:
            for _ in range(3):
                await until(lambda: n.device.state == SERVING and any(w.key is None for w in n.device.running))
                last = n.device.generation
                n.process(last).die()
                await until(lambda last=last: n.device.generation != last or n.device.state == FENCED)
            await until(lambda: n.device.state == FENCED)
            with pytest.raises(Refusal, match="fenced"):
                await n.device.channel(n.session())
            own = n.session(dedicated=True)
            assert await n.generation(own) > 3, "the fence applies to the shared worker"

    run(scenario())


@pytest.mark.parametrize("place", ["of a lost process", "of a new key"])
def test_losses_of_a_spare_do_not_count_against_the_worker_that_it_becomes(place: str) -> None:
    async def scenario() -> None:
        async with node(dataclasses.replace(PATIENT, spare=True, max_restarts=2)) as n:
            session = n.session()
            assert await n.generation(session) == 1

            def spare() -> Worker:
                worker = n.device.workers.vacant
                assert worker is not None
                return worker

            for _ in range(3):
                await until(lambda: spare().state == SERVING)
                generation = spare().generation
                n.process(generation).die()
                await until(lambda generation=generation: spare().generation != generation)
            await until(lambda: spare().state == SERVING)
            generation = spare().generation
            if place == "of a new key":
                session = n.session(dedicated=True)
            else:
                n.process(1).die()
                await lost(n, session)
            assert await n.generation(session) == generation
            n.process(generation).die()
            await lost(n, session)
            assert await n.generation(session) > generation

    run(scenario())


def test_a_fenced_spare_replaces_no_process() -> None:
    workers, key = WorkerSet(), WorkerKey("x")
    worker: Any = SimpleNamespace(key=key)
    spare: Any = SimpleNamespace(state=FENCED)
    workers.serving[key], workers.vacant = worker, spare
    assert not workers.replace(worker)
    assert workers.serving == {key: worker} and workers.vacant is spare


def test_a_fenced_worker_of_one_tenant_while_another_is_served() -> None:
    async def scenario() -> None:
        async with node(dataclasses.replace(BY_TENANT, max_restarts=1)) as n:
            x, y = n.session(X), n.session(Y)
            await n.generation(x)
            await n.generation(y)
            for generation in (1, 3):
                n.process(generation).die()
                await lost(n, x)
                if generation == 1:
                    assert await n.generation(x) == 3
            with pytest.raises(Refusal, match="fenced") as caught:
                await n.device.channel(x)
            assert caught.value.reason == Reason.DEVICE_UNAVAILABLE and caught.value.retry_after_s is None
            assert await n.generation(y) == 2 and n.device.state == SERVING
            n.device.restart()
            assert await n.generation(x) > 3, "an operator has lifted the fence"
            assert (await lost(n, y)).details["cause"] == "restart"
            assert await n.generation(y) > 3

    run(scenario())


def test_processes_that_never_start_fence_the_device_and_a_restart_lifts_that() -> None:
    async def scenario() -> None:
        launcher = FakeLauncher()
        launcher.ready = False
        policy = dataclasses.replace(BY_TENANT, max_restarts=1, start_timeout=0.02, serving_wait=1.0)
        async with node(policy, launcher) as n:
            await until(lambda: n.device.state == FENCED)
            with pytest.raises(Refusal) as caught:
                await n.device.channel(n.session(X))
            assert caught.value.reason == Reason.DEVICE_UNAVAILABLE and "start" in caught.value.message
            launcher.ready = True
            n.device.policy = dataclasses.replace(policy, start_timeout=60.0, serving_wait=60.0)
            n.device.restart()
            await until(lambda: n.device.state == SERVING)
            await n.generation(n.session(X))

    run(scenario())


def test_durable_memory_is_restored_before_a_process_serves() -> None:
    async def scenario() -> None:
        async with node(BY_TENANT) as n:
            told: list[tuple[int, bool, bool]] = []
            x, y = n.session(X), n.session(Y)
            gate = asyncio.Event()

            async def prepare(link: DeviceLink) -> None:
                await gate.wait()
                told.append((link.generation, link.serves(x), link.serves(y)))

            gate.set()
            n.supervisor.prepare.append(prepare)
            await n.generation(x)
            await n.generation(y)
            assert told == [(1, True, False), (2, False, True)]
            gate.clear()
            n.process(1).die()
            await lost(n, x)
            waiting = asyncio.create_task(n.generation(x))
            await until(lambda: len(n.launcher.started) == 3)
            assert not waiting.done()
            n.process(3).die()  # during its start
            await until(lambda: n.lost == [(0, 1), (0, 3)])
            gate.set()
            assert await waiting == 4
            assert told[2:] == [(4, True, False)]

    run(scenario())


@pytest.mark.parametrize("state", ["launched", "ready", "serving"])
def test_changed_specification_reaches_a_process_once_whatever_its_state(state: str) -> None:
    async def scenario() -> None:
        launcher, prepared = FakeLauncher(), asyncio.Event()

        async def prepare(_link: DeviceLink) -> None:
            await prepared.wait()

        async with node(launcher=launcher) as n:
            n.supervisor.prepare.append(prepare)
            launcher.ready = state != "launched"
            if state == "serving":
                prepared.set()
            n.process(1).die()
            await until(lambda: len(launcher.started) == 2)
            process, worker = launcher.started[1], n.device.workers.serving[ALL_SESSIONS]
            link = await started(worker)
            if state != "launched":
                await link.ready
            if state == "serving":
                await until(lambda: worker.state == SERVING)
            changed = dataclasses.replace(n.device.spec, launch_timeout=7.0, log_level="debug", max_streams=1)
            n.device.change(changed)
            launcher.ready = True
            if state == "launched":
                process.become_ready()
            prepared.set()
            await until(lambda: worker.state == SERVING)
            expected = {"launch_timeout": 7.0, "log_level": "debug", "log_format": "console", "load_timeout": 60.0}
            await link.ping()
            assert process.changes == [(0, expected)]
            n.device.change(changed)
            await link.ping()
            assert len(process.changes) == 1
            n.process(2).die()
            await until(lambda: len(launcher.started) == 3)
            spec = launcher.started[2].spec
            assert spec.launch_timeout == 7.0 and spec.max_streams != 1, "the other settings are those of the start"

    async def started(worker: Worker) -> DeviceLink:
        await until(lambda: worker.process is not None and worker.process.generation == 2)
        assert worker.process is not None
        return worker.process.link

    run(scenario())


def test_a_preparation_that_fails_does_not_keep_the_device_from_serving() -> None:
    async def scenario() -> None:
        async def broken(link: DeviceLink) -> None:
            raise ValueError("no")

        async with node(BY_TENANT) as n:
            n.supervisor.prepare.append(broken)
            assert await n.generation(n.session(X)) == 1

    run(scenario())


def test_a_session_that_ends_while_its_process_starts() -> None:
    async def scenario() -> None:
        launcher = FakeLauncher()
        async with node(PATIENT, launcher) as n:
            launcher.ready = False
            own = n.session(dedicated=True)
            waiting = asyncio.create_task(n.device.channel(own))
            await until(lambda: len(launcher.started) == 2)
            await n.sessions.close(own, "done")
            with pytest.raises(Refusal):
                await waiting
            await until(lambda: n.running == [1])

    run(scenario())


@pytest.mark.parametrize("cause", ["tenant", "quarantine", "hardware"])
def test_session_that_may_not_use_the_device_any_more_stops_waiting_for_it(cause: str) -> None:
    async def scenario() -> None:
        launcher = FakeLauncher()
        async with node(dataclasses.replace(PATIENT, max_faults=1), launcher) as n:
            launcher.ready = False
            n.process(1).die()
            session = n.session()
            await until(lambda: len(launcher.started) == 2)
            waiting = asyncio.create_task(n.device.channel(session))
            await asyncio.sleep(0)
            assert not waiting.done()
            if cause == "tenant":
                session.tenant = dataclasses.replace(session.tenant, devices=frozenset())
            elif cause == "quarantine":
                for _ in range(2):
                    n.supervisor.record_fault(session.id)
            else:
                n.device.fence("a fault")
            launcher.ready = True
            launcher.started[1].become_ready()
            with pytest.raises(Refusal) as caught:
                await waiting
            assert (caught.value.reason == Reason.DEVICE_NOT_FOUND) == (cause == "tenant")
            worker = n.device.workers.serving[ALL_SESSIONS]
            await until(lambda: worker.state == SERVING)
            assert worker.link is not None and worker.link.serves(session) == (cause == "hardware")
            assert not session.channels and not worker.link.channels

    run(scenario())


def test_no_process_is_started_for_a_session_that_closes_while_it_waits_for_room() -> None:
    async def scenario() -> None:
        async with node(dataclasses.replace(PATIENT, max_processes=2)) as n:
            first, second = n.session(dedicated=True), n.session(dedicated=True)
            assert await n.generation(first) == 2
            await n.sessions.close(first, "done")
            waiting = asyncio.create_task(n.device.channel(second))
            await asyncio.sleep(0)
            assert n.device.workers.ending and not waiting.done()
            await n.sessions.close(second, "done")
            with pytest.raises(Refusal) as caught:
                await waiting
            assert caught.value.reason == Reason.SESSION_EXPIRED
            await until(lambda: not n.device.workers.ending)
            assert n.running == [1] and len(n.device.workers) == 1

    run(scenario())


def test_the_loss_of_all_is_the_loss_of_the_device() -> None:
    async def scenario() -> None:
        launcher = FakeLauncher()
        async with node(BY_TENANT, launcher) as n:
            x = n.session(X)
            await n.generation(x)
            seen: list[Any] = []
            n.supervisor.watch(lambda: seen.append(n.device.state))
            n.process(1).die()
            await lost(n, x)
            await n.generation(x)
            assert seen[0] == LOST and seen[-1] == SERVING

    run(scenario())


def fault_of(process: FakeDevice, *sessions: str) -> None:
    process.fault(Refusal(Reason.DEVICE_LOST, "a kernel faulted.", details={"sessions": ", ".join(sessions)}))


def test_a_session_that_is_named_too_often_shares_no_process_any_more() -> None:
    async def scenario() -> None:
        policy = dataclasses.replace(PATIENT, max_faults=2, max_restarts=3)
        async with node(policy, devices=2) as n:
            told: list[str] = []
            n.supervisor.on_quarantined = told.append
            bad, good, own = n.session(), n.session(), n.session(dedicated=True)
            elsewhere = await n.supervisor.find(1).channel(bad)
            for generation in (1, 2, 3):
                assert [await n.generation(each) for each in (bad, good)] == [generation, generation]
                fault_of(n.process(generation), bad.id)
                for each in (bad, good):
                    refusal = await lost(n, each)
                    assert bad.id not in str(refusal.details), (
                        "the faulting session's identity is hidden from other sessions"
                    )
                await until(lambda: n.device.state == SERVING)
            for device in n.supervisor:
                with pytest.raises(Refusal) as caught:
                    await device.channel(bad)
                assert caught.value.reason == Reason.SESSION_BARRED
            assert told == [bad.id] and elsewhere.link.generation == 1
            await until(lambda: not elsewhere.alive)
            assert await n.generation(good) == 4, "the faulting session counts once: the device is not fenced"
            link = n.device.running[0].link
            assert link is not None and not link.serves(bad) and link.serves(good)
            n.device.restart()
            await lost(n, good)
            assert await n.generation(bad) == await n.generation(good), "an operator has admitted it again"
            for _ in range(3):
                generation = await n.generation(own)
                fault_of(n.process(generation), own.id)
                await lost(n, own)
            await n.generation(own)
            await n.sessions.close(bad, "done")
            assert n.supervisor.quarantine.refusal(bad.id) is None

    run(scenario())


def test_faults_of_several_sessions_fence_the_device() -> None:
    async def scenario() -> None:
        async with node(dataclasses.replace(PATIENT, max_restarts=1)) as n:
            for generation in (1, 2):
                session = n.session()
                assert await n.generation(session) == generation
                fault_of(n.process(generation), session.id)
                await lost(n, session)
            assert n.device.state == FENCED

    run(scenario())


def test_crash_is_attributed_to_the_only_session_with_work() -> None:
    launcher = FakeLauncher()
    launcher.hold_acks = True  # keeps the work in progress when the process ends

    async def scenario() -> None:
        async with node(dataclasses.replace(PATIENT, max_faults=0), launcher) as n:
            busy, idle = n.session(), n.session()
            await n.generation(idle)
            channel = await n.device.channel(busy)
            channel.send_batch(batch(1).SerializeToString())
            n.process(1).die()
            await until(lambda: n.supervisor.quarantine.refusal(busy.id))
            assert n.supervisor.quarantine.refusal(idle.id) is None

    run(scenario())


def test_memory_is_requested_and_returned_over_the_link() -> None:
    async def scenario() -> None:
        launcher = FakeLauncher()
        async with node(PATIENT, launcher) as n:
            await n.generation(n.session())
            own = n.session(dedicated=True)
            await n.generation(own)
            memory = n.device.memory
            total = 1 << 30
            assert (memory.granted(1), memory.granted(2), memory.free) == (total, 0, 0)
            n.process(2).send(Kind.HELD, json.dumps({"wants": 100, "reserved": 0, "in_use": 0}).encode())
            await until(lambda: n.process(2).limits)
            slab = total // 64
            assert memory.granted(2) == slab and memory.granted(1) == total // 2
            limits = [[limit["bytes"] for limit in n.process(number).limits] for number in (1, 2)]
            assert limits == [[total // 2], [slab]]
            described = {each.generation: each.memory_granted for each in n.device.describe(EVERYONE).processes}
            assert described == {1: total // 2, 2: slab}
            await n.sessions.close(own, "done")
            await until(lambda: memory.granted(1) == total)

    run(scenario())


def test_a_process_waits_for_room_for_its_context() -> None:
    async def scenario() -> None:
        policy = dataclasses.replace(PATIENT, context_memory=600 << 20, serving_wait=0.2)
        async with node(policy) as n:
            await n.generation(n.session())
            own = n.session(dedicated=True)
            with pytest.raises(Refusal) as caught:
                await n.device.channel(own)
            assert caught.value.reason == Reason.DEVICE_UNAVAILABLE and caught.value.retry_after_s
            assert "memory" in caught.value.message
            assert n.device.state == SERVING and len(n.launcher.started) == 1
            await n.sessions.close(own, "done")
            await until(lambda: len(n.device.workers) == 1)

    run(scenario())


def test_stop_while_several_serve() -> None:
    async def scenario() -> None:
        async with node(BY_TENANT, devices=2) as n:
            await n.generation(n.session(X))
            await n.generation(n.session(Y, dedicated=True))
            await n.supervisor.find(1).channel(n.session(X))

    run(scenario())
