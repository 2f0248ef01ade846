"""[collectives] listen and advertise: the addresses at which daemons of a group connect, and invalid values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hearthd.front.addresses import parse_address
from hearthd.front.config.loader import ConfigError, load


def settings(tmp_path: Path, **section: Any) -> Any:
    path = tmp_path / "hearth.toml"
    lines = [f"{key} = {value!r}".replace("'", '"') for key, value in section.items()]
    path.write_text("\n".join(["[collectives]", *lines]))
    return load(path, {})[0].collectives


def test_loopback_by_default() -> None:
    section = load(environ={})[0].collectives
    assert parse_address(section.listen).loopback and parse_address(section.listen).port == 0
    assert section.advertise == ()


def test_settings_from_file_and_environment(tmp_path: Path) -> None:
    assert settings(tmp_path, listen="").listen == ""
    section = settings(tmp_path, listen="127.0.0.1:7424", advertise=["gpu1:7424", "[fd00::1]:7424"])
    assert section.advertise == ("gpu1:7424", "[fd00::1]:7424")
    environ = {"HEARTH_COLLECTIVES_LISTEN": "[::1]:5", "HEARTH_COLLECTIVES_ADVERTISE": '["a:1", b:2]'}
    section = load(environ=environ)[0].collectives
    assert (section.listen, section.advertise) == ("[::1]:5", ("a:1", "b:2"))


@pytest.mark.parametrize(
    ("section", "told"),
    [
        ({"listen": "x"}, "collectives.listen"),
        ({"listen": "127.0.0.1:99999"}, "is not an address"),
        ({"advertise": ["gpu1:7424"]}, "no fixed port"),
        ({"listen": "", "advertise": ["gpu1:7424"]}, "no fixed port"),
        ({"listen": "127.0.0.1:5", "advertise": ["gpu1:0"]}, "cannot be connected to"),
        ({"listen": "127.0.0.1:5", "advertise": [":5"]}, "cannot be connected to"),
        ({"listen": "127.0.0.1:5", "advertise": ["[::]:5"]}, "cannot be connected to"),
        ({"listen": "127.0.0.1:5", "advertise": ["gpu1"]}, "is not an address"),
        ({"listen": "127.0.0.1:5", "advertise": ["gpu1:1"] * 17}, "the maximum is 16"),
        ({"advertised": []}, "collectives.advertise"),
    ],
    ids=str,
)
def test_mistakes(tmp_path: Path, section: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError) as error:
        settings(tmp_path, **section)
    assert told in str(error.value) and "\n" not in str(error.value)


def test_further_than_loopback_takes_tls_or_insecure() -> None:
    listen = {("collectives", "listen"): "0.0.0.0:7424"}
    with pytest.raises(ConfigError, match=r"tickets of groups would be sent unencrypted.*insecure"):
        load(environ={}, flags=listen)
    tls: dict[tuple[str, ...], Any] = {("tls", "certificate"): "/c.pem", ("tls", "key"): "/k.pem"}
    assert load(environ={}, flags={**listen, **tls})[0].collectives.listen == "0.0.0.0:7424"
    assert load(environ={}, flags={**listen, ("insecure",): True})[0].insecure
    assert parse_address(":5").wildcard and parse_address("[::]:5").wildcard and not parse_address("gpu1:5").wildcard
