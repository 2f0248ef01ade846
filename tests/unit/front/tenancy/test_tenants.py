"""Mapping of identities to tenants, and the configuration of tenants."""

from __future__ import annotations

import os
import pwd
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hearth_proto.reasons import Reason, Refusal
from hearth_proto.rights import ORDINARY
from hearthd.front.config.loader import ConfigError, load, tenants
from hearthd.front.tenancy.tenants import Credential, Directory, Right, Tenant, User, sees_tenant, token_key

ONE, OLD = ("hearth_" + word.ljust(22, "-") for word in ("one", "old"))
A, B, C = Tenant("a"), Tenant("b", devices=frozenset({1}), rights=frozenset({Right.READ})), Tenant("c")
HASH = "sha256:" + "e" * 63


def directory() -> Directory:
    return Directory(
        [A, B, C],
        tokens={Credential(token_key(ONE), "one"): A, Credential(token_key(OLD), "old", 1000.0): B},
        certificates={"a.example": A, "b.example": B},
        users={1: A},
        groups={10: B, 11: C},
    )


def refused(call: Any, *arguments: Any) -> Refusal:
    with pytest.raises(Refusal) as error:
        call(*arguments)
    assert error.value.reason == Reason.UNAUTHENTICATED and error.value.fix
    return error.value


def test_tokens() -> None:
    known = directory()
    assert known.token(ONE, 0)[0] is A and known.token(OLD, 999.9)[0] is B
    assert "expired" in refused(known.token, OLD, 1000.0).message
    unknown = {str(refused(known.token, ONE[:-1] + end, 0)) for end in ("x", "xx", "x" * 9999)}
    assert len(unknown) == 1
    malformed = {str(refused(known.token, wrong, 0)) for wrong in ("", "foo", ONE + " ", "\ud800", "sha256:", ONE[:-1])}
    assert len(malformed) == 1 and "hearth_" in malformed.pop()
    assert not known.open and Directory().open


@given(st.text(max_size=8))
def test_no_other_token_is_known(text: str) -> None:
    if text not in (ONE, OLD):
        refused(directory().token, text, 0)


def test_certificates() -> None:
    known = directory()
    assert known.certificate(["x", "a.example"]) == (A, "a.example")
    assert "x, y" in refused(known.certificate, ["x", "y"]).message
    assert "several" in refused(known.certificate, ["a.example", "b.example"]).message


def test_users_then_groups_in_order() -> None:
    known = directory()
    assert known.user(User(1, frozenset({10})))[0] is A
    assert known.user(User(2, frozenset({11, 10})))[0] is B
    assert known.user(User(2, frozenset({11}))) == (C, "user 2 of group 11")
    assert "User 3" in refused(known.user, User(3, frozenset({12}))).message


def test_devices_rights_and_sight() -> None:
    assert B.sees(1) and not B.sees(0) and A.sees(5)
    B.require((Right.READ,), "read")
    B.require((), "sync")
    with pytest.raises(Refusal) as error:
        B.require((Right.READ, Right.LAUNCH), "dispatch")
    assert error.value.details == {"operation": "dispatch", "right": "launch", "tenant": "b"}
    assert sees_tenant(B, "b") and sees_tenant(B, "") and not sees_tenant(B, "a") and sees_tenant(A, "b")


# ---- configuration ----


def write(directory: Path, text: str) -> Path:
    path = directory / "hearth.toml"
    path.write_text(text)
    return path


def test_a_whole_tenant(tmp_path: Path) -> None:
    me = pwd.getpwuid(os.getuid()).pw_name
    text = f"""
    [listen]
    unix = "/run/x.sock"
    [[tenants]]
    name = "research"
    tokens = ["{HASH}0", {{ hash = "{HASH}1", name = "ci", expires = 2999-12-31 }}]
    users = ["{me}", 4242]
    weight = 2
    priority = -1
    devices = [0, 2]
    rights = ["read", "write"]
    [tenants.quotas]
    device_bytes = "2GiB"
    gpu_seconds = "2m"
    [[tenants]]
    name = "other"
    tokens = ["{HASH}2"]
    [[tenants]]
    name = "everything"
    tokens = ["{HASH}3"]
    rights = "all"
    """
    config, _ = load(write(tmp_path, text), {})
    known = tenants(config)
    research = known.tenants["research"]
    assert (research.weight, research.priority, research.devices) == (2, -1, {0, 2})
    assert research.rights == {Right.READ, Right.WRITE}
    assert (research.quotas.device_bytes, research.quotas.gpu_seconds) == (2 << 30, 120)
    assert known.user(User(os.getuid()))[0] is known.user(User(4242))[0] is research
    assert known.tenants["other"].rights == ORDINARY and known.tenants["other"].devices is None
    assert known.tenants["everything"].may(Right.ADMIN)


@pytest.mark.parametrize(
    ("expires", "until"),
    [
        ("2027-06-30", 1814400000.0),  # valid for the whole day
        ('"2027-06-30"', 1814400000.0),
        ("2027-06-30T12:00:00Z", 1814356800.0),
        ("2027-06-30T12:00:00", 1814356800.0),
        ("2027-06-30T12:00:00+02:00", 1814349600.0),
        ('"never"', float("inf")),
        ("9999-12-31", float("inf")),  # the last date that there is
        ('"9999-12-31"', float("inf")),
    ],
)
def test_dates(tmp_path: Path, expires: str, until: float) -> None:
    text = f'[[tenants]]\nname = "a"\ntokens = [{{ hash = "{HASH}0", expires = {expires} }}]\n'
    config, _ = load(write(tmp_path, text), {})
    assert config.tenants[0].tokens[0].credential().expires == until
    assert time.strftime("%Y", time.gmtime(1814356800)) == "2027"


@pytest.mark.parametrize("expires", ["1", "true", '"soon"', "12:00:00", '"2027-13-01"', "-1.0", "inf", "nan"])
def test_invalid_dates_are_refused(tmp_path: Path, expires: str) -> None:
    text = f'[[tenants]]\nname = "a"\ntokens = [{{ hash = "{HASH}0", expires = {expires} }}]\n'
    with pytest.raises(ConfigError, match=r"tenants\[0\].tokens\[0\].expires: .* is not a date"):
        load(write(tmp_path, text), {})


@pytest.mark.parametrize(
    ("quota", "value"),
    [
        ("gpu_seconds", "inf"), ("gpu_seconds", "nan"), ("gpu_seconds", "1e300"),
        ("gpu_seconds", '"1000000000000000h"'),
        ("gpu_seconds", "-2"), ("device_bytes", "9223372036854775808"), ("device_bytes", '"9999999TiB"'),
        ("handles", "inf"),
    ],
)  # fmt: skip
def test_quotas_that_no_counter_can_reach_are_refused(tmp_path: Path, quota: str, value: str) -> None:
    text = f'[[tenants]]\nname = "a"\nusers = [1]\n[tenants.quotas]\n{quota} = {value}\n'
    with pytest.raises(ConfigError, match=rf'tenants\[0\].quotas.{quota}: .*"none" or "auto"'):
        load(write(tmp_path, text), {})


def test_device_time_of_several_years_is_a_quota(tmp_path: Path) -> None:
    text = '[[tenants]]\nname = "a"\nusers = [1]\n[tenants.quotas]\ngpu_seconds = "100000h"\n'
    assert load(write(tmp_path, text), {})[0].tenants[0].quotas.gpu_seconds == 3.6e8


def test_tenants_are_configured_in_the_file_only(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"\[\[tenants\]\]"):
        load(environ={"HEARTH_TENANTS": "alice"})
    for text in ('tenants = "alice"\n', '[tenants]\nname = "alice"\n'):
        with pytest.raises(ConfigError, match=r"\[\[tenants\]\]"):
            load(write(tmp_path, text), {})


def test_variables_of_clients_are_left_alone() -> None:
    names = ("TARGET", "TOKEN", "TOKEN_FILE", "CA", "CERTIFICATE", "KEY")
    assert load(environ={f"HEARTH_{name}": "x" for name in names})[1] == {}


def test_one_user_cannot_belong_to_two_tenants(tmp_path: Path) -> None:
    me = pwd.getpwuid(os.getuid()).pw_name
    text = f'[[tenants]]\nname = "a"\nusers = ["{me}"]\n[[tenants]]\nname = "b"\nusers = [{os.getuid()}]\n'
    config, _ = load(write(tmp_path, text), {})
    with pytest.raises(ConfigError, match="'a' as well"):
        tenants(config)
