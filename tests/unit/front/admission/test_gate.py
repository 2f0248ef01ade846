"""Callers are identified by the headers of their call, and again when its first message has arrived."""

from __future__ import annotations

import hashlib
from pathlib import Path

from hearth_proto.reasons import Reason
from hearth_proto.v1 import node_pb2
from hearthd.front.config.loader import Config, load
from hearthd.front.tenancy.tenants import Caller
from tests.support.front.fixture import front, refused, run, until

TOKENS = [f"hearth_{letter * 22}" for letter in "uv"]


def test_token_revoked_before_the_first_message_opens_no_session(tmp_path: Path) -> None:
    file = tmp_path / "hearth.toml"
    flags = {("listen", name): "" for name in ("grpc", "http", "lanes")}
    flags["listen", "unix"] = str(tmp_path / "h.sock")

    def allow(token: str) -> None:
        file.write_text(f'[[tenants]]\nname = "a"\ntokens = ["sha256:{hashlib.sha256(token.encode()).hexdigest()}"]\n')

    def read() -> Config:
        return load(file, {}, flags)[0]

    async def scenario() -> None:
        async with front(tmp_path, devices=1, read=read) as f:
            reloader, admitted = f.daemon.reloader, list[Caller | None]()
            reloader.daemon_ready()
            f.daemon.parts.gate.on_credential = admitted.append
            open_session = f.channel.stream_unary(
                "/hearth.v1.NodeService/OpenSession",
                request_serializer=node_pb2.OpenSessionRequest.SerializeToString,
                response_deserializer=node_pb2.OpenSessionResponse.FromString,
            )
            call = open_session(metadata=(("authorization", f"Bearer {TOKENS[0]}"),))
            await call.wait_for_connection()
            await until(lambda: admitted)
            allow(TOKENS[1])
            reloader.request()
            await reloader.wait_until_idle()
            assert not reloader.refusal
            await call.write(node_pb2.OpenSessionRequest(client_name="late"))
            await call.done_writing()
            assert (await refused(call)).reason == Reason.UNAUTHENTICATED
            assert not len(f.daemon.sessions)

    allow(TOKENS[0])
    run(scenario())
