"""The table of reloadable settings, the plan of a reload, and a request during a reload, which causes another one."""

from __future__ import annotations

import asyncio
import hashlib
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from hearth_proto.reasons import Reason, Refusal
from hearth_proto.v1 import node_pb2
from hearthd.front.audit.recorder import Audit
from hearthd.front.config.loader import Config, ConfigError, load, settings
from hearthd.front.daemon.reload import Reloader
from hearthd.front.daemon.reload_plan import (
    FIRST_TENANT,
    FIRST_USER,
    LAST_TENANT,
    RELOADABLE,
    ReloadError,
    ReloadPlan,
    plan,
    value,
)
from hearthd.front.daemon.systemd import Notifier
from hearthd.front.sessions.command_queue import CommandQueue
from hearthd.front.sessions.tenant_accounts import TenantAccounts
from hearthd.front.tenancy.tenants import Caller, Credential, Directory, Quotas, Tenant, User, token_key
from tests.support.folders import ROOT
from tests.support.front.fixture import front, refused, run, until

TOKEN_A, TOKEN_B = ("hearth_" + name * 22 for name in ("a", "b"))
A, B = ("sha256:" + hashlib.sha256(token.encode()).hexdigest() for token in (TOKEN_A, TOKEN_B))
ALICE = {"name": "alice", "tokens": [A]}
BOB = {"name": "bob", "tokens": [B]}


def config(**sections: Any) -> Config:
    return Config.model_validate(sections)


# ---- the table ----


def test_reloadable_settings_exist() -> None:
    assert RELOADABLE.keys() <= {".".join(path) for path in settings()}
    assert all(RELOADABLE.values())


OTHER: dict[str, Any] = {
    "listen.grpc": "127.0.0.1:1", "listen.http": "", "listen.lanes": "", "listen.unix": "/x.sock",
    "listen.http_unix": "/h.sock",
    "devices.backend": "cpu", "devices.visible": [1], "devices.isolation": "shared",
    "devices.cpu_tenants": "trusted", "devices.gpu_confinement": "off", "compile.tenants": "trusted",
    "cache.key": "/k",
    "log.level": "error", "log.format": "json", "lanes.path": "/y.sock", "cache.dir": "/z", "audit.path": "/audit.log",
    "audit.key": "/k/key", "audit.anchor": "log",
    "collectives.listen": "127.0.0.1:7424", "collectives.advertise": ["gpu1:7"], "collectives.peers": ["gpu1"],
    "tls.certificate": "c", "tls.key": "k", "tls.client_ca": "a", "tls.crl": "r",
    "tls.require_client_certificate": True, "listen.unix_access": "all",
    "http.hosts": ["gpu1"], "tenants": [ALICE],
}  # fmt: skip
"""Other values for settings whose default cannot be incremented."""


OTHER |= {
    f"overload.{name}": share
    for name, share in (
        ("group_memory", 0.93), ("group_memory_critical", 0.98), ("descriptors", 0.9), ("descriptors_critical", 0.99),
    )
}  # fmt: skip


def other(path: tuple[str, ...]) -> Any:
    default = value(Config(), path)
    if isinstance(default, bool):
        return not default
    return OTHER.get(".".join(path), default + 1 if isinstance(default, int | float) else None)


def with_settings(chosen: set[tuple[str, ...]]) -> Config:
    chosen = set(chosen)
    if any(path[0] == "tls" for path in chosen):  # these settings are only valid together
        chosen |= {path for path in settings() if path[0] == "tls"}
    if ("collectives", "advertise") in chosen:
        chosen.add(("collectives", "listen"))
    values: dict[str, Any] = {}
    for path in chosen:
        target = values if len(path) == 1 else values.setdefault(path[0], {})
        target[path[-1]] = other(path)
    return Config.model_validate(values)


@pytest.mark.parametrize("path", sorted(settings()), ids=".".join)
def test_each_setting_alone(path: tuple[str, ...]) -> None:
    name = ".".join(path)
    wanted = with_settings({path})
    planned = plan(Config(), wanted)
    if name == "tenants":
        assert planned.changed == () and planned.deferred == (FIRST_TENANT,)
    elif name in RELOADABLE:
        assert (
            planned.changed == (name,) and planned.deferred == () and value(planned.config, path) == value(wanted, path)
        )
    else:
        assert planned.changed == () and name in planned.deferred and planned.config == Config()


SETS = st.sets(st.sampled_from([path for path in settings() if path != ("tenants",)]), max_size=12)


@hypothesis_settings(max_examples=60, deadline=None)
@given(SETS, SETS, st.lists(st.sampled_from(["alice", "bob", "carol"]), min_size=1, max_size=3, unique=True))
def test_plan_has_exactly_the_reloadable_changes(one: set[Any], two: set[Any], names: list[str]) -> None:
    tables = [
        {"name": name, "tokens": ["sha256:" + hashlib.sha256(f"hearth_{name:-<22}".encode()).hexdigest()]}
        for name in names
    ]
    before = Config.model_validate({**with_settings(one).model_dump(), "tenants": [ALICE]})
    after = Config.model_validate({**with_settings(two).model_dump(), "tenants": tables})
    planned = plan(before, after)
    for path in settings():
        source = after if ".".join(path) in RELOADABLE else before
        assert value(planned.config, path) == value(source, path)
    assert plan(planned.config, after).changed == () and plan(planned.config, after).deferred == planned.deferred
    added, removed = {f"+{name}" for name in names if name != "alice"}, {"-alice"} - {f"-{name}" for name in names}
    assert {word for word in planned.tenants.split() if word[0] in "+-"} == added | removed


def test_unchanged_configuration_gives_empty_plan() -> None:
    assert plan(Config(), Config()) == ReloadPlan(Config(), (), (), "")


def test_tenants() -> None:
    both = config(tenants=[ALICE, BOB])
    planned = plan(
        both, config(tenants=[{**ALICE, "weight": 2, "quotas": {"sessions": 1}}, {"name": "c", "users": [1]}])
    )
    assert planned.tenants == "+c -bob alice (weight, quotas)"
    assert planned.deferred == (FIRST_USER,) and planned.config.tenants[1].name == "c"
    planned = plan(both, config())
    assert planned.deferred == (LAST_TENANT,) and planned.config == both


def test_change_that_depends_on_a_restart_is_refused() -> None:
    tls = {"certificate": "/c", "key": "/k", "client_ca": "/a", "require_client_certificate": True}
    wanted = config(tenants=[{"name": "alice", "certificates": ["ci"]}], tls=tls)
    with pytest.raises(ReloadError, match=r"client_ca.*unchanged until a restart.*tls\.certificate"):
        plan(config(tenants=[ALICE]), wanted)


# ---- identities ----


def test_callers_are_matched_with_the_new_tenants() -> None:
    one, two = Tenant("one"), Tenant("two")
    before = Directory(
        [one], {Credential(token_key("t"), "ci"): one}, certificates={"x": one}, users={5: one}, groups={7: one}
    )
    callers = [
        Caller(one, "token ci", "peer", proof=token_key("t")),
        Caller(one, "certificate x", proof=("x", "y")),
        Caller(one, "user 5", uid=5, proof=User(5)),
        Caller(one, "user 6 of group 7", uid=6, proof=User(6, frozenset({7}))),
    ]
    assert [before.reidentify(caller, 0) for caller in callers] == callers[:1] + callers[1:]
    later = Directory(
        [two], {Credential(token_key("t"), "new", 50.0): two}, certificates={"y": two}, users={5: two}, groups={7: two}
    )
    again = [later.reidentify(caller, 10) for caller in callers]
    assert [caller.tenant for caller in again] == [two] * 4
    assert (again[0].credential, again[0].expires, again[0].peer) == ("token new", 50.0, "peer")
    assert again[1].credential == "certificate y"
    with pytest.raises(Refusal, match="expired"):
        later.reidentify(callers[0], 50)
    for caller in callers:
        with pytest.raises(Refusal) as error:
            Directory([two]).reidentify(caller, 0)
        assert error.value.reason == Reason.UNAUTHENTICATED
    assert Directory().reidentify(Caller(one), 0) == Caller(one), "no credential was required"


# ---- quotas ----


def test_queue_bounds_change_during_waits() -> None:
    async def scenario() -> None:
        queue = CommandQueue(2)
        queue.count(10, 2)
        waiting = asyncio.create_task(queue.wait_for_room())
        await asyncio.sleep(0)
        queue.set_limits(1, 0)
        await asyncio.sleep(0)
        assert not waiting.done() and queue.full
        queue.set_limits(3, 0)
        await asyncio.wait_for(waiting, 1)
        queue.set_limits(0, 0)
        assert queue.unbounded and queue.commands == 2

    asyncio.run(scenario())


def test_time_that_is_used_up_by_a_lower_quota() -> None:
    accounts = TenantAccounts()
    ended: list[str] = []
    accounts.on_exhausted = lambda account: ended.append(account.tenant.name)
    account = accounts.of(Tenant("a", quotas=Quotas(gpu_seconds=10)))
    account.device_ns = 5 * 10**9
    accounts.change({"a": Tenant("a", quotas=Quotas(gpu_seconds=4)), "b": Tenant("b")})
    assert ended == ["a"] and account.exhausted
    accounts.change({"a": Tenant("a", quotas=Quotas(gpu_seconds=4, sessions=3))})
    assert ended == ["a"], "the clients were notified"
    accounts.change({"a": Tenant("a", quotas=Quotas(gpu_seconds=20))})
    account.check_time()


# ---- the reloader ----


def test_requests_during_a_reload_cause_one_further_reload() -> None:
    async def scenario() -> None:
        reads, made = [0], []
        gate = threading.Event()

        def read() -> Config:
            reads[0] += 1
            assert gate.wait(10)
            return config(drain_timeout=reads[0])

        async def apply(planned: ReloadPlan, directory: Directory) -> int:
            made.append(planned.config.drain_timeout)
            return 0

        reloader = Reloader(Config(), read, apply, Audit(), Notifier({}))
        for _ in range(5):
            reloader.request()  # before the daemon is ready
        await asyncio.sleep(0)
        assert reads == [0]
        reloader.daemon_ready()
        await until(lambda: reads == [1])
        for _ in range(5):
            reloader.request()
        gate.set()
        await reloader.wait_until_idle()
        assert reads == [2] and made == [1, 2] and reloader.config.drain_timeout == 2
        await reloader.stop()
        reloader.request()
        await asyncio.sleep(0)
        assert reads == [2]

    run(scenario())


@pytest.mark.parametrize("error", [ConfigError("it is wrong"), RuntimeError("a bug")])
def test_failed_reload_does_not_block_the_next(error: Exception) -> None:
    async def scenario() -> None:
        def read() -> Config:
            if outcomes:
                raise outcomes.pop()
            return config(drain_timeout=3)

        async def apply(planned: ReloadPlan, directory: Directory) -> int:
            return 0

        outcomes = [error]
        reloader = Reloader(Config(), read, apply, Audit(), Notifier({}))
        reloader.daemon_ready()
        reloader.request()
        await reloader.wait_until_idle()
        assert reloader.config == Config() and reloader.refusal
        reloader.request()
        await reloader.wait_until_idle()
        assert reloader.config.drain_timeout == 3 and not reloader.refusal

    run(scenario())


# ---- in a front, with device processes that record the messages sent to them ----


def test_reload_messages_to_device_processes(tmp_path: Path) -> None:
    file = tmp_path / "hearth.toml"
    file.write_text(f'[[tenants]]\nname = "alice"\ntokens = ["{A}"]\n')

    async def scenario() -> None:
        flags = {("listen", "unix"): str(tmp_path / "h.sock"), ("listen", "grpc"): "", ("listen", "http"): ""}
        flags[("listen", "lanes")] = ""

        def read() -> Config:
            return load(file, {}, flags)[0]

        async with front(tmp_path, read=read) as served:
            reloader = served.daemon.reloader
            reloader.daemon_ready()
            opened = await served.node.OpenSession(
                node_pb2.OpenSessionRequest(), metadata=(("authorization", f"Bearer {TOKEN_A}"),)
            )
            session = next(iter(served.daemon.sessions))
            device = served.daemon.supervisor.devices[0]
            channel = await device.channel(session)
            await until(lambda: any(each.opened for each in served.launcher.started))
            fake = next(each for each in served.launcher.started if each.opened)
            file.write_text(
                f'[[tenants]]\nname = "alice"\ntokens = ["{A}"]\nweight = 3\npriority = -1\nrights = ["read"]\n'
                '[tenants.quotas]\ndevice_bytes = "1MiB"\n[launch]\ntimeout = "5s"\nload_timeout = "9s"\n'
            )
            reloader.request()
            await reloader.wait_until_idle()
            await until(lambda: len(fake.changes) == 2)
            (zero, general), (number, mine) = sorted(fake.changes, key=lambda change: change[0])
            assert fake.spec.scrub, "memory is cleared, because a second tenant may follow"
            assert zero == 0 and general["launch_timeout"] == 5 and general["log_level"] == "info"
            assert general["load_timeout"] == 9 and device.spec.load_timeout == 9
            assert number == channel.number and mine["weight"] == 3 and mine["priority"] == -1
            assert mine["rights"] == ["read"] and mine["device_bytes"] == 1 << 20
            assert session.tenant.weight == 3 and session.caller.tenant is session.tenant
            worker = next(iter(device.workers.serving.values()))
            assert worker.quota == 1 << 20
            file.write_text(f'[[tenants]]\nname = "bob"\ntokens = ["{B}"]\n')
            reloader.request()
            await reloader.wait_until_idle()
            assert session.closing and not len(served.daemon.sessions)
            request = node_pb2.RenewSessionRequest(session_token=opened.session_token)
            for _ in range(2):
                refusal = await refused(served.node.RenewSession(request))
                assert refusal.reason == Reason.SESSION_EXPIRED and "is no longer valid" in refusal.message
            await until(lambda: worker.ending)

    run(scenario())


# ---- SIGHUP before the daemon exists ----


def test_a_hangup_before_anything_else_is_noted() -> None:
    code = (
        "import os, signal; from hearthd.shared import sighup; h = sighup.begin(); "
        "os.kill(os.getpid(), signal.SIGHUP);"
        "print(h.requested, h.terminal_closed)"
    )
    env = {"PYTHONPATH": ":".join(str(ROOT / part) for part in ("proto", "server"))}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=True)
    assert done.stdout.split() == ["True", "False"]
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_DFL, "not this process's"
