"""Text that no message can hold is refused, with an error that names it, before any command is sent."""

from __future__ import annotations

from typing import Any

import pytest

import hearth
from hearth.blocking.module import RawModule
from hearth.codec.encode import encodable
from hearth.endpoint.open_session import open_session

HALF = "\ud800"


@pytest.mark.parametrize("name", [5, b"bytes", HALF, ["x"]])
def test_a_client_s_name(name: Any) -> None:
    with pytest.raises(hearth.ArgumentError, match=r"name is .*pass a str"):
        open_session(None, None, 1.0, name, make_connection=None, meanwhile=lambda: None)  # type: ignore[arg-type]


class _Device:
    _connection: Any = None


def test_a_source() -> None:
    with pytest.raises(hearth.DtypeError, match="UTF-8"):
        RawModule(_Device(), "//" + HALF)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["", HALF, 5, None])
def test_a_kernel_s_name(name: Any) -> None:
    module = RawModule.__new__(RawModule)
    with pytest.raises(hearth.ArgumentError, match="not a kernel name"):
        module.get_function(name)


def test_encodable_text() -> None:
    assert encodable("né\0漢\U0001f525") and encodable("")
    assert not encodable("a" + HALF)
