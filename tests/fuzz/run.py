"""Fuzzing of a daemon: two canaries, one session that is fuzzed, and checks that must hold after any input."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc

from hearth_proto import reasons
from hearth_proto.v1 import status_pb2
from tests.fuzz import targets
from tests.fuzz.canary import Canary, new_mark
from tests.fuzz.messages import Maker
from tests.fuzz.session import Session
from tests.support.client.internals import session_of
from tests.support.daemon.harness import BACKEND, DaemonProcess
from tests.support.daemon.held import State, state_of
from tests.support.daemon.tenants import new_token, tenant, token_hash

FOREIGN, OWN, OPERATOR = "canary", "fuzz", "operator"
PRIVATE_KIB = 128 << 10
"""KiB of memory that a process may have gained: pools, and memory that the allocator keeps after messages of 33 MiB."""
ALIVE_EVERY = 40
"""Number of calls between two checks whether the fuzzed session is still open."""
WARM_S = 0.1
GIVEN_BACK_S = 10.0
FILES = 16 if BACKEND == "cuda" else 4
"""Additional open files that a process may have afterwards. On an H200 eight sockets remain, most likely NCCL's for a
join without peers, which cannot be aborted while it waits for them."""
SOCKETS = ("wire, TCP", "wire, Unix", "HTTP", "identity", "calls")


class Fuzz:
    """`with Fuzz(cache) as fuzz: fuzz.run(name, seconds)`; `problems` lists the defects found."""

    def __init__(self, cache: Path, seed: int = 0) -> None:
        self.rng = random.Random(seed)
        self.problems: list[str] = []
        self.codes: dict[str, Counter[str]] = {}
        tokens = {name: new_token() for name in (FOREIGN, OWN, OPERATOR)}
        config = {
            "tenants": [
                tenant(FOREIGN, tokens=[token_hash(tokens[FOREIGN])]),
                tenant(OWN, tokens=[token_hash(tokens[OWN])], users=[os.getuid()]),
                tenant(OPERATOR, tokens=[token_hash(tokens[OPERATOR])], rights=["admin"]),
            ],
            "devices": {"isolation": "shared"},
            "auth": {"max_failures": 10_000, "failure_delay": "0s"},
            "collectives": {"timeout": "1s"},
            "sessions": {"lease": "20s"},
        }
        self.daemon = DaemonProcess(cache, config, 2)
        self._bearer, self._operator = tokens[OWN], tokens[OPERATOR]
        self._channel = grpc.insecure_channel(self.daemon.unix, [("grpc.max_send_message_length", -1)])
        self._metadata = (("authorization", f"Bearer {self._bearer}"),)
        self.node = self.daemon.connect(token=tokens[FOREIGN])
        self.canaries = [Canary(self.node, gpu, new_mark()) for gpu in self.node.devices[:2]]
        self.session = Session(self._channel, self._metadata, len(self.node.devices))
        self.maker = Maker(self.rng, self._token, (FOREIGN, "weights", "weights_canary"))
        self._pids = self._processes()
        self._log_read = 0

    def __enter__(self) -> Fuzz:
        self.session.renew()
        self.session.renew()  # one session has ended by then
        for canary in self.canaries:
            canary.start()
        return self

    def __exit__(self, *_: object) -> None:
        for canary in self.canaries:
            canary.stop()
        self._channel.close()
        self.node.close()
        self.daemon.stop()
        self.problems += [f"not released: {what}" for what in self.daemon.left_behind()]
        if self.daemon.process.returncode != 0:
            self.problems.append(f"the daemon ended with {self.daemon.process.returncode}")
        self.daemon.remove()

    @staticmethod
    def names() -> list[str]:
        """Returns the names of all targets."""
        return [*(rpc.name for rpc in targets.rpcs()), *SOCKETS]

    # ---- the fuzzing ----

    def run(self, name: str, seconds: float) -> int:
        """Fuzzes one of `names`; returns the number of messages sent."""
        deadline = time.monotonic() + seconds
        one = self._one(name)
        sent = 0
        while time.monotonic() < deadline:
            one()
            sent += 1
            if sent % ALIVE_EVERY == 0 and not self.session.alive():
                self.session.renew()
        if not self.session.alive():
            self.session.renew()
        self._look(name)
        return sent

    def _one(self, name: str) -> Callable[[], None]:
        found = [rpc for rpc in targets.rpcs() if rpc.name == name]
        if found:
            return lambda: self._call(found[0])
        address = self.daemon.grpc if name == "wire, TCP" else self.daemon.http
        host, _, port = address.rpartition(":")
        if name == "HTTP":
            return lambda: self._exchange(name, targets.http(self.maker, self._bearer), lambda: _tcp(host, int(port)))
        if name == "wire, TCP":
            return lambda: self._exchange(name, targets.wire(self.maker), lambda: _tcp(host, int(port)))
        path = self.daemon.socket
        if name == "identity":
            path = path.with_name(f"{path.stem}-identity.sock")
            assert path.exists(), path
        if name == "calls":
            path = path.with_name(f"{path.name}.call")
            assert path.exists(), path
            return lambda: self._exchange(name, targets.framed(self.maker, self._metadata), lambda: _unix(path))
        return lambda: self._exchange(name, targets.wire(self.maker), lambda: _unix(path))

    def _call(self, rpc: targets.Rpc) -> None:
        if rpc.method.name == "Execute":
            answer, sent = targets.execute(self._channel, rpc, self.maker, self._metadata)
        else:
            payloads = targets.payloads(rpc, self.maker)
            answer, sent = targets.call(self._channel, rpc, payloads, self._metadata), b"".join(payloads)
        self.codes.setdefault(rpc.name, Counter())[answer.code.name] += 1
        told = self._reason(answer)
        if answer.code in (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN) or told == "INTERNAL":
            self.problems.append(f"{rpc.name}: {answer.code.name} {told} {answer.text[:300]!r} to {sent[:1500]!r}")
        self._scan(rpc.name, answer.text, sent)

    def _exchange(self, name: str, data: bytes, connect: Callable[[], socket.socket]) -> None:
        answer = targets.exchange(connect, data)
        head = answer.split(b"\r\n", 1)[0][:20].decode("latin-1")
        self.codes.setdefault(name, Counter())[head if name == "HTTP" else str(bool(answer))] += 1
        if name == "HTTP" and b" 500 " in answer[:20]:
            self.problems.append(f"{name}: {answer[:300]!r} to {data[:300]!r}")
        self._scan(name, answer, data)

    def _token(self) -> str:
        """Returns a session token: usually the session's; otherwise an old one, an almost valid one, or garbage."""
        dice = self.rng.random()
        if dice < 0.82:
            return self.session.token
        other = self.rng.choice((self.session.token, session_of(self.canaries[0].node).token, self.session.stale))
        if dice < 0.86:
            return self.session.stale
        if dice < 0.96:
            at = self.rng.randrange(len(other))
            wrong = self.rng.choice("abcXYZ019_-".replace(other[at], ""))
            return other[:at] + wrong + other[at + 1 :] if dice < 0.92 else other[:at]
        return self.rng.choice(("", "x" * 5000, "\0", "é"))

    # ---- invariants ----

    @staticmethod
    def _reason(answer: targets.Answer) -> str:
        """Returns the reason in the status's details, if there are any."""
        key = reasons.STATUS_DETAILS_KEY.encode()
        _, _, tail = answer.text.partition(key + b"\n")
        if not tail:
            return ""
        with contextlib.suppress(Exception):
            return str(reasons.from_status(status_pb2.Status.FromString(tail)).reason)
        return ""

    def _scan(self, name: str, answer: bytes, sent: bytes) -> None:
        for canary in self.canaries:
            for secret in canary.secrets:
                if secret in answer and secret not in sent:
                    self.problems.append(f"{name}: an answer reveals another session: {answer[:300]!r}")

    def _processes(self) -> list[tuple[int, int]]:
        return [(device.pid, device.generation) for device in self.node.describe().devices]

    def _look(self, name: str) -> None:
        """Checks after each target that all processes and canaries work, and that the log contains no defect."""
        if self.daemon.process.poll() is not None:
            self.problems.append(f"{name}: the daemon has ended: {self.daemon.log()[-2000:]}")
            return
        pids = self._processes()
        if pids != self._pids:
            self.problems.append(f"{name}: a device process has ended: {self._pids} are {pids}")
            self._pids = pids
        for canary in self.canaries:
            self.problems += [f"{name}: the canary: {error}" for error in canary.errors]
            canary.errors.clear()
            before, deadline = canary.rounds, time.monotonic() + 20.0
            while canary.rounds == before and not canary.errors and time.monotonic() < deadline:
                time.sleep(0.01)
            if canary.rounds == before:
                self.problems.append(f"{name}: the canary no longer works: {canary.errors}")
        log = self.daemon.log()
        fresh, self._log_read = log[self._log_read :], len(log)
        for line in fresh.splitlines():
            # Messages of gRPC's core about damaged frames have another format, and contain bytes of the frames.
            if "Traceback" in line or '"level": "error"' in line or "Fatal Python error" in line:
                self.problems.append(f"{name}: the log: {line[:1500]}")
                break

    def at_rest(self) -> State:
        """Returns the daemon's state after the fuzzed session is closed and a new one is opened."""
        self.session.renew()
        deadline = time.monotonic() + 10.0
        while len(self.node.sessions()) > 1 and time.monotonic() < deadline:
            time.sleep(0.05)
        return state_of(self.daemon, self._operator)

    def compare(self, before: State) -> None:
        """Checks that all resources have been released, after some time: NCCL takes a second to free a communicator."""
        deadline = time.monotonic() + GIVEN_BACK_S
        while (found := self._differences(before, self.at_rest())) and time.monotonic() < deadline:
            time.sleep(0.2)
        self.problems += found

    @staticmethod
    def _differences(before: State, after: State) -> list[str]:
        found = []
        for name, a, b in zip(
            ("front", *(f"device {i}" for i in range(len(after.devices)))),
            (after.front, *after.devices),
            (before.front, *before.devices),
            strict=True,
        ):
            if sum(a.fds.values()) > sum(b.fds.values()) + FILES:
                found.append(f"{name}: open files {b.fds} have become {a.fds}")
            if a.private_kib > b.private_kib + PRIVATE_KIB:
                found.append(f"{name}: {b.private_kib} private KiB have become {a.private_kib}")
        return found


def _tcp(host: str, port: int) -> socket.socket:
    return socket.create_connection((host, port), 5)


def _unix(path: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(5)
    connection.connect(str(path))
    return connection


@contextlib.contextmanager
def fuzzing(cache: Path, seed: int = 0) -> Iterator[Fuzz]:
    """Yields the fuzzing, and compares the resources at the end."""
    with Fuzz(cache, seed) as fuzz:
        if BACKEND == "cuda":  # the first use of CUDA allocates resources permanently
            for name in Fuzz.names():
                fuzz.run(name, WARM_S)
        before: Any = fuzz.at_rest()
        yield fuzz
        if fuzz.daemon.process.poll() is None:
            fuzz.compare(before)
