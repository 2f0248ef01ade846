"""Sharing of a device by tenants with a real daemon: in one process and in separate processes, with floods, and with
the order of commands."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import hearth
from tests.support.daemon.harness import DaemonProcess, StartDaemon, wait_until
from tests.support.daemon.kernels import COMMON, gated
from tests.support.daemon.lent import LentDaemon
from tests.support.daemon.resting import SOURCE, Flood
from tests.support.daemon.tenants import tenant, tenants
from tests.support.timing import steady

WEIGHTS = {"one": 1.0, "two": 2.0, "four": 4.0}


class Tenants:
    """Three tenants of a daemon with the given isolation, which is lent to one test after another."""

    def __init__(self, cache: Path, isolation: str) -> None:
        who = [tenant(name, weight=weight) for name, weight in WEIGHTS.items()]
        config, self._tokens = tenants(*who, devices={"isolation": isolation})
        self.lent = LentDaemon(cache, config, 1)

    @contextlib.contextmanager
    def connected(self) -> Iterator[tuple[DaemonProcess, dict[str, hearth.Node]]]:
        daemon = self.lent.lend()
        with contextlib.ExitStack() as stack:
            yield daemon, {name: stack.enter_context(daemon.connect(token=self._tokens[name])) for name in WEIGHTS}


Three = Callable[[str], contextlib.AbstractContextManager[tuple[DaemonProcess, dict[str, hearth.Node]]]]


@pytest.fixture(scope="module")
def three(cache: Path) -> Iterator[Three]:
    """Connects three tenants to the daemon with this isolation."""
    by_isolation = {isolation: Tenants(cache, isolation) for isolation in ("shared", "tenant")}
    yield lambda isolation: by_isolation[isolation].connected()
    for each in by_isolation.values():
        each.lent.close()


def metered(daemon: DaemonProcess) -> dict[str, float]:
    return {account["name"]: account["device_seconds"] for account in daemon.status()["tenants"]}


@pytest.mark.parametrize("isolation", ["shared", "tenant"])
def test_tenants_get_shares_by_their_weights(three: Three, isolation: str) -> None:
    """Shares of the metered time; kernels of equal duration are counted as well."""
    with three(isolation) as (daemon, nodes), contextlib.ExitStack() as stack:
        floods = {name: Flood(nodes[name], 2_000_000) for name in WEIGHTS}
        pids = {process["pid"] for process in daemon.status()["devices"][0]["processes"]}
        assert len(pids) == (1 if isolation == "shared" else 3)
        for flood in floods.values():
            stack.enter_context(flood)
        time.sleep(0.7)  # long enough to complete the work that the first flood submitted while it was alone

        def measure() -> tuple[list[float], dict[str, int]]:
            before, used = {name: flood.done for name, flood in floods.items()}, metered(daemon)
            time.sleep(2.5)
            done = {name: flood.done - before[name] for name, flood in floods.items()}
            now = metered(daemon)
            spent = [now[name] - used[name] for name in WEIGHTS]
            return [seconds / sum(spent) for seconds in spent], done

        expected = pytest.approx([weight / 7 for weight in WEIGHTS.values()], rel=0.2)

        def good(measured: tuple[list[float], dict[str, int]]) -> bool:
            used, done = measured
            # On a busy machine, a delayed kernel takes time that is charged to its session.
            return used == expected and done["four"] > 1.3 * done["two"] > 1.3 * 1.3 * done["one"]

        measured = steady(measure, good)
    assert good(measured), measured


@pytest.mark.parametrize("isolation", ["shared", "tenant"])
def test_flood_does_not_delay_launch_and_wait_of_others(three: Three, isolation: str) -> None:
    with three(isolation) as (_, nodes):
        gpu = nodes["one"].device(0)
        counter = gpu.zeros(1, np.int32)
        kernel = gpu.RawModule(code=SOURCE).get_function("rest")

        def overtaking(flood: Flood) -> float:
            """Returns the median, of 30 round trips, of the number of the flood's kernels that run during a round trip,
            as a fraction of its queued kernels."""
            parts = []
            for _ in range(30):
                before, in_line = flood.done, flood.launched - flood.done
                kernel((1,), (1,), (counter, np.int64(0)))
                gpu.synchronize()
                parts.append((flood.done - before) / in_line)
            return sorted(parts)[15]

        # Two seconds of work are queued; a command queued after it would wait for all of it.
        with Flood(nodes["four"], 1_000_000, at_a_time=64, under_way=32) as flood:
            wait_until(lambda: flood.launched > 32 * 64, "the flood")
            measured = steady(lambda: overtaking(flood), lambda part: part < 0.1)
        assert measured < 0.25
        assert counter.get()[0] % 30 == 0


def test_processes_that_start_and_end_change_the_turns(three: Three) -> None:
    """A flood alone, then together with another tenant, then alone again; measured by kernels of equal duration. Each
    tenant runs its share of them."""
    with three("tenant") as (_, nodes), Flood(nodes["one"], 2_000_000) as flood:

        def goes_on() -> None:
            done = flood.done
            wait_until(lambda: flood.done > done + 200, "turns of the first", 60)

        goes_on()
        with Flood(nodes["four"], 2_000_000) as other:

            def share() -> float:
                """Returns the first flood's share of the next few hundred kernels."""
                before = flood.done, other.done
                wait_until(lambda: flood.done + other.done > sum(before) + 400, "turns of both", 60)
                return (flood.done - before[0]) / (flood.done + other.done - sum(before))

            share()  # the first flood still had queued work
            part = steady(share, lambda part: 0 < part < 0.3)
            assert 0 < part < 0.45
        goes_on()


def test_metered_time_equals_busy_time(three: Three) -> None:
    with three("shared") as (daemon, nodes):

        def measure() -> tuple[float, float]:
            """Returns the seconds for which the device was busy, and the metered seconds."""
            floods = [Flood(nodes[name], 1_000_000) for name in ("one", "four")]
            before, began = sum(metered(daemon).values()), time.perf_counter()
            with floods[0], floods[1]:
                time.sleep(1.5)
            took = time.perf_counter() - began
            return took, sum(metered(daemon).values()) - before

        def good(times: tuple[float, float]) -> bool:
            took, used = times
            return took * 0.5 <= used <= took * 1.1  # no work is queued while this process is not scheduled

        measured = steady(measure, good)
    assert good(measured), measured


def opens_its_own_gate(one: hearth.Node, other: hearth.Node) -> None:
    """A session opens the gate by work after its waiting kernel, while another session has work for the device."""
    with Flood(other, 1_000_000), gated(one.device(0)) as gate:
        time.sleep(0.1)
        counter = one.device(0).zeros(1, np.int32)
        gate.hold(counter)
        time.sleep(0.3)  # it is charged for the running kernel, more than its share
        gate.open()  # if this were not executed, the kernel would run until its time limit, which is an error
        one.device(0).synchronize()
        assert counter.get()[0] == 1


def test_a_kernel_that_waits_for_its_own_host_does_not_wait_for_ever(daemon: DaemonProcess) -> None:
    with daemon.connect() as one, daemon.connect() as other:
        opens_its_own_gate(one, other)


def test_a_process_whose_kernel_waits_for_its_host_does_not_wait_for_ever(three: Three) -> None:
    with three("tenant") as (_, nodes):
        opens_its_own_gate(nodes["one"], nodes["two"])


def chain(node: hearth.Node, seed: int) -> bool:
    """Runs kernels that do not commute on three streams, with copies between them and from the host; returns whether
    all results are correct."""
    gpu = node.device(0)
    mix = gpu.RawModule(code=COMMON).get_function("mix")
    dice = np.random.default_rng(seed)
    size = 257
    streams: list[hearth.Stream | None] = [None, gpu.stream(), gpu.stream()]
    mirror = [dice.integers(0, 1 << 32, size, np.uint32) for _ in range(4)]
    arrays = [gpu.asarray(each) for each in mirror]
    for _ in range(60):
        stream = streams[dice.integers(3)]
        x, y = dice.choice(4, 2, replace=False)
        match dice.integers(4):
            case 0:
                mirror[y] = dice.integers(0, 1 << 32, size, np.uint32)
                arrays[y].set(mirror[y], stream=stream)
            case 1:
                mirror[y] = mirror[x].copy()
                arrays[y].copy_from(arrays[x], stream=stream)
            case _:
                for _ in range(int(dice.integers(1, 8))):
                    mirror[y] = np.uint32(3) * mirror[y] + mirror[x]
                    mix((2,), (256,), (arrays[x], arrays[y], np.int32(size)), stream=stream)
    return all((array.get() == expected).all() for array, expected in zip(arrays, mirror, strict=True))


def together(nodes: list[hearth.Node], work: Callable[[hearth.Node, int], bool]) -> bool:
    with ThreadPoolExecutor(len(nodes)) as pool:
        return all(pool.map(work, nodes, range(len(nodes))))


def test_order_is_kept_while_sessions_take_turns(daemon: DaemonProcess) -> None:
    with contextlib.ExitStack() as stack:
        nodes = [stack.enter_context(daemon.connect()) for _ in range(3)]
        flooding = stack.enter_context(daemon.connect())
        with Flood(flooding, 200_000, at_a_time=16):
            assert together(nodes, chain)


def test_order_is_kept_while_processes_take_turns(three: Three) -> None:
    with three("tenant") as (_, nodes), Flood(nodes["two"], 500_000, at_a_time=8):
        assert together([nodes["one"], nodes["four"]], chain)


def test_collectives_do_not_wait_for_turns(start_daemon: StartDaemon) -> None:
    """Two tenants flood one device each; a third tenant reduces over both devices, and so does one of the first two."""
    who = [tenant(name) for name in ("a", "b", "c")]
    config, tokens = tenants(*who)
    daemon = start_daemon(cpu_count=2, **config)
    with contextlib.ExitStack() as stack:
        nodes = {name: stack.enter_context(daemon.connect(token=token)) for name, token in tokens.items()}
        if len(nodes["a"].devices) < 2:
            pytest.skip("needs two devices")

        def reduce(node: hearth.Node, seed: int) -> bool:
            devices = node.devices[:2]
            group = hearth.Group(devices)
            for turn in range(10):
                arrays = [device.full(999, seed + turn, np.int64) for device in devices]
                group.all_reduce(arrays)
                if any((array.get() != 2 * (seed + turn)).any() for array in arrays):
                    return False
            return True

        with Flood(nodes["a"], 1_000_000):
            assert together([nodes["b"], nodes["c"]], reduce)
