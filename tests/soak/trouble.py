"""Work with losses, broken connections and shared arrays: kinds of clients of the soak test that provoke failures."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable

import numpy as np

import hearth
from tests.soak.work import (
    SOURCE,
    Client,
    Counter,
    Rounds,
    collectives,
    dispatches,
    errors,
    graphs,
    launches,
    modules,
    short_sessions,
    telemetry,
    transfers,
)  # fmt: skip
from tests.support.daemon.cutter import Cutter, random_cuts

FAR = np.int64(1 << 45)
CALM_S = 20.0
"""Seconds between two faults of a session."""


def faulting(client: Client) -> Rounds:
    """A dedicated session whose kernels fault; its durable array, if supported, survives."""
    while True:
        node = client.connect(name="soak faulting", isolation="dedicated")
        with node:
            gpu = client.device(node)
            for _ in range(3):
                counter = Counter(gpu)
                counter.launch(10)
                counter.check(client.ledger, "launches between faults")
                gpu.RawModule(code=SOURCE).get_function("wild")((1,), (1,), (counter.count, FAR))
                try:
                    gpu.synchronize()
                    client.ledger.wrong("a fault was not reported", "lost")
                except hearth.DeviceLostError:
                    client.ledger.count("faults")
                until_served(gpu)
                calm = time.monotonic() + CALM_S
                while time.monotonic() < calm:
                    yield


def serves(gpu: hearth.Device) -> bool:
    try:
        gpu.synchronize()
    except (hearth.DeviceLostError, hearth.UnavailableError):
        return False
    return True


def durable(client: Client) -> Rounds:
    """Checkpoints of arrays that change; a dedicated session loses its process, and its arrays are restored."""
    with client.connect(name="soak durable", isolation="dedicated") as node:
        gpu = client.device(node)
        add_one = gpu.RawModule(code=SOURCE).get_function("add_one")
        x = gpu.durable(gpu.zeros(50_000, np.int32))
        done = 0
        for number in itertools.count(1):
            for _ in range(5):
                add_one((200,), (256,), (x, np.int32(50_000)))
            done += 5
            x.checkpoint()
            gpu.synchronize()
            if number % 40 == 0:
                gpu.RawModule(code=SOURCE).get_function("wild")((1,), (1,), (x, FAR))
                try:
                    gpu.synchronize()
                    client.ledger.wrong("a fault was not reported", "lost")
                except hearth.DeviceLostError:
                    client.ledger.count("faults")
                until_served(gpu)
                has = x.get()
                client.ledger.counted(int(has[0]), done, "launches before a checkpoint")
                client.ledger.check(bool((has == done).all()), "a durable array after a loss")
                if number >= 120:
                    return  # a session that faults repeatedly is eventually refused
            yield


def resuming(client: Client) -> Rounds:
    """Launches and transfers over connections that are cut from time to time, at any byte."""
    with Cutter(client.target, random_cuts(client.number, 8 << 20)) as cutter:
        node = until_connected(client, cutter)
        with node:
            gpu = client.device(node)
            counter = Counter(gpu)
            for number in itertools.count():
                counter.launch(client.rng.randrange(1, 60))
                host = np.random.default_rng(client.rng.randrange(2**32)).integers(0, 256, 3 << 20, np.uint8)
                array = gpu.asarray(host)
                client.ledger.check(bool((array.get() == host).all()), "a transfer over a cut connection")
                counter.check(client.ledger, "launches over a cut connection")
                if number % 10 == 0:
                    client.ledger.count("cuts", cutter.cuts)
                    cutter.cuts = 0
                yield


def until_connected(client: Client, cutter: Cutter) -> hearth.Node:
    """Connects, repeatedly: opening a session is not repeated automatically, and its connection may be cut, too."""
    for _ in range(50):
        try:
            return client.connect(cutter.address, name="soak resuming")
        except hearth.HearthError as error:
            refused = error
    raise refused


def published(client: Client) -> Rounds:
    """Arrays that one session publishes and other sessions attach."""
    with client.connect(name="soak publisher") as node:
        gpu = client.device(node)
        for number in itertools.count():
            name, host = f"soak {client.number} {number}", np.full(100_000, number, np.int32)
            gpu.publish(name, gpu.asarray(host))
            with client.connect(name="soak reader") as reader:
                attached = reader.device(gpu.ordinal).attach(name)
                client.ledger.check(bool((attached.get() == number).all()), "an attached array")
                gpu.unpublish(name)
                client.ledger.check(bool((attached.get() == number).all()), "an attached array that has no name now")
            yield


def until_served(gpu: hearth.Device, seconds: float = 30.0) -> None:
    """Polls until the device serves; raises an error if it does not within `seconds`."""
    deadline = time.monotonic() + seconds
    while not serves(gpu):
        if time.monotonic() > deadline:
            raise AssertionError(f"the device was not back within {seconds:g} s")
        time.sleep(0.02)


KINDS: dict[str, Callable[[Client], Rounds]] = {
    "launches": launches, "transfers": transfers, "graphs": graphs, "dispatches": dispatches, "telemetry": telemetry,
    "short": short_sessions, "faulting": faulting, "durable": durable, "resuming": resuming, "collectives": collectives,
    "errors": errors, "modules": modules, "killed": launches, "killed-transfers": transfers, "published": published,
    "resuming-2": resuming,
}  # fmt: skip
KILLED = ("killed", "killed-transfers")
"""Kinds of clients that the parent kills with SIGKILL from time to time, and starts again."""
