"""The tables of rights cover every operation, so that nothing new is allowed or denied by oversight."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hearth_proto import rights
from hearth_proto.reasons import Reason
from hearth_proto.rights import Right
from hearth_proto.v1 import commands_pb2, device_pb2


def test_every_command_is_in_the_table() -> None:
    kinds = {field.name for field in commands_pb2.Command.DESCRIPTOR.oneofs_by_name["kind"].fields}
    assert set(rights.COMMANDS) == kinds


def test_every_call_is_in_one_of_the_tables() -> None:
    calls = {method.name for method in device_pb2.DESCRIPTOR.services_by_name["DeviceService"].methods}
    of_commands = {"".join(part.capitalize() for part in kind.split("_")) for kind in rights.COMMANDS}
    assert calls <= of_commands | set(rights.CALLS)
    assert not of_commands & set(rights.CALLS)


@given(st.sets(st.sampled_from(list(Right))))
def test_allowed_commands_need_no_further_right(granted: set[Right]) -> None:
    allowed = rights.allowed(granted)
    for kind, needed in rights.COMMANDS.items():
        assert (kind in allowed) == (set(needed) <= granted)
        assert bool(rights.missing(needed, granted)) == (kind not in allowed)
    assert "nothing that is known" not in allowed


def test_giving_back_needs_no_right() -> None:
    """A tenant that may only attach published buffers can release them."""
    assert {"free", "sync", "memory_usage"} <= rights.allowed(())
    assert rights.allowed(rights.OF_COMMANDS) == set(rights.COMMANDS)
    assert rights.OF_COMMANDS <= rights.ORDINARY and Right.ADMIN not in rights.ORDINARY


@pytest.mark.parametrize("lacking", [[], [Right.LAUNCH], [Right.LAUNCH, Right.READ]])
def test_refusal_names_tenant_operation_and_right(lacking: list[Right]) -> None:
    refusal = rights.permission_denied("dispatch", lacking, "guest")
    assert refusal.reason == Reason.PERMISSION_DENIED and "guest" in refusal.message and "guest" in refusal.fix
    assert refusal.details["operation"] == "dispatch" and refusal.details["tenant"] == "guest"
    assert all(right in refusal.details["right"] for right in lacking)
