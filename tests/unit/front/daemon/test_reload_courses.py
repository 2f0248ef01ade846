"""Sessions are opened, used and closed between reloads that move, remove and restore tokens and quotas. The result of
every such sequence agrees with a model."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path

import pytest

from hearth_proto.reasons import Reason
from hearth_proto.v1 import node_pb2
from hearthd.front.config.loader import Config, load
from tests.support.front.fixture import Front, front, refused, run

TOKENS = [f"hearth_{letter:-<22}" for letter in "uvwxyz"]


class Course:
    """A sequence of reloads, and its model: tokens are letters, each with its tenant or none."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        self.owners: dict[str, str] = {}
        """Tenant, by token."""
        self.allowed: dict[str, int] = {}
        """Maximum number of sessions, by tenant; 0: no limit."""
        self.sessions: dict[str, tuple[str, str]] = {}
        """Tenant and token, by session."""
        self._file = folder / "hearth.toml"
        self._flags = {("listen", name): "" for name in ("grpc", "http", "lanes")}
        self._flags["listen", "unix"] = str(folder / "h.sock")

    def read(self) -> Config:
        return load(self._file, {}, self._flags)[0]

    def write(self) -> None:
        chance = self.chance
        names = chance.sample("abc", chance.randint(1, 3))
        self.owners = {token: chance.choice(names) for token in chance.sample(TOKENS, chance.randint(1, 6))}
        self.allowed = {name: chance.choice([0, 1, 2, 5]) for name in sorted(set(self.owners.values()))}
        text = '[auth]\nfailure_delay = "0s"\n'
        for name, allowed in self.allowed.items():
            hashes = [hashlib.sha256(token.encode()).hexdigest() for token in TOKENS if self.owners.get(token) == name]
            text += f'[[tenants]]\nname = "{name}"\ntokens = {["sha256:" + each for each in hashes]}\n'
            text += f"weight = {chance.randint(1, 9)}\n[tenants.quotas]\nsessions = {allowed}\n"
        self._file.write_text(text)

    async def step(self, served: Front) -> None:
        kind = self.chance.choice(["open", "open", "use", "use", "close", "reload"])
        if kind == "reload":
            await self._reload(served)
        elif kind == "open":
            await self._open(served)
        elif self.sessions:
            key = self.chance.choice(list(self.sessions))
            if kind == "use":
                await served.node.RenewSession(node_pb2.RenewSessionRequest(session_token=key))
                session = served.daemon.sessions.find(key)
                assert session.tenant is served.daemon.access.auth.directory.tenants[self.sessions[key][0]]
            else:
                await served.node.CloseSession(node_pb2.CloseSessionRequest(session_token=key))
                del self.sessions[key]

    async def _reload(self, served: Front) -> None:
        self.write()
        for _ in range(self.chance.randint(1, 3)):
            served.daemon.reloader.request()
        await served.daemon.reloader.wait_until_idle()
        assert not served.daemon.reloader.refusal
        for key, (tenant, token) in list(self.sessions.items()):
            if self.owners.get(token) != tenant:
                del self.sessions[key]
                refusal = await refused(served.node.RenewSession(node_pb2.RenewSessionRequest(session_token=key)))
                assert refusal.reason == Reason.SESSION_EXPIRED and "configuration" in refusal.message

    async def _open(self, served: Front) -> None:
        token = self.chance.choice(TOKENS)
        shown = (("authorization", f"Bearer {token}"),)
        call = served.node.OpenSession(node_pb2.OpenSessionRequest(), metadata=shown)
        tenant = self.owners.get(token)
        count = sum(owner == tenant for owner, _ in self.sessions.values())
        if tenant is None:
            assert (await refused(call)).reason == Reason.UNAUTHENTICATED
        elif self.allowed[tenant] and count >= self.allowed[tenant]:
            assert (await refused(call)).reason == Reason.QUOTA_EXCEEDED
        else:
            self.sessions[(await call).session_token] = (tenant, token)


@pytest.mark.parametrize("seed", range(4))
def test_any_course_of_reloads(tmp_path: Path, seed: int) -> None:
    course = Course(tmp_path, seed)

    async def scenario() -> None:
        course.write()
        async with front(tmp_path, read=course.read) as served:
            served.daemon.reloader.daemon_ready()
            for _ in range(150):
                await course.step(served)
            assert len(served.daemon.sessions) == len(course.sessions)

    run(scenario())
