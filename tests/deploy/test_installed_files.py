"""`hearthd example-config` and `hearthd install-service`: installation of files of `deploy/`."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from hearthd.cli import service_unit
from hearthd.cli.example_config import EXAMPLES
from tests.support.daemon.harness import environment, hearthd
from tests.support.folders import ROOT
from tests.support.programs import program

COMMAND = ["/opt/hearth/bin/hearthd"]


def test_examples_are_listed_and_printed() -> None:
    listed = hearthd("example-config")
    assert listed.returncode == 0 and [line.split(" ")[0] for line in listed.stdout.splitlines()[:4]] == list(EXAMPLES)
    printed = {name: hearthd("example-config", name).stdout for name in EXAMPLES}
    files = [*(ROOT / "deploy" / "examples").glob("*.toml"), ROOT / "deploy" / "hearth.toml"]
    assert sorted(printed.values()) == sorted(path.read_text() for path in files)


def test_unknown_example_names_the_examples() -> None:
    done = hearthd("example-config", "teem")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "hearthd: there is no example 'teem'. Fix: use one of one-user, team, cluster-node, all-settings.\n"
    )


def test_system_unit_starts_this_installation() -> None:
    text = service_unit.unit(COMMAND, user=False, account="gpu", config="/etc/gpu box.toml")
    assert 'ExecStart=/opt/hearth/bin/hearthd serve --config "/etc/gpu box.toml" --log-format json\n' in text
    assert 'ExecReload=/opt/hearth/bin/hearthd check-config --config "/etc/gpu box.toml"' in text
    assert "\nUser=gpu\nGroup=gpu\n" in text and "pip install" not in text and "deploy/" not in text
    delivered = (ROOT / "deploy/systemd/hearthd.service").read_text().split("\n\n", 1)[1]
    assert service_unit.unit(COMMAND, user=False).split("\n\n", 1)[1] == delivered


def test_user_unit_starts_the_interpreter_where_there_is_no_script() -> None:
    text = service_unit.unit(["/home/al%i/env/bin/python", "-m", "hearthd"], user=True)
    assert "\nExecStart=/home/al%%i/env/bin/python -m hearthd serve --config %E/hearth/hearth.toml " in text
    assert "User=hearth" not in text


@pytest.mark.parametrize("user", [False, True])
def test_systemd_accepts_the_unit(tmp_path: Path, user: bool) -> None:
    script = tmp_path / "hearthd"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    text = service_unit.unit(COMMAND, user=user).replace(COMMAND[0], str(script))
    (tmp_path / "hearthd.service").write_text(text)
    command = [program("systemd-analyze"), *(["--user"] * user), "verify", str(tmp_path / "hearthd.service")]
    env = environment(XDG_RUNTIME_DIR=str(tmp_path), HOME=str(tmp_path))
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("command", "account", "config", "says"),
    [
        ("/home/alice/env/bin/hearthd", "hearth", None, "it hides /home from the daemon. Fix: install Hearth in /opt"),
        ("/opt/hearth/bin/hearthd", "no one", None, "--run-as 'no one' is not a valid account name"),
        ("/opt/hearth/bin/hearthd", "hearth", "hearth.toml", "the path must be absolute"),
    ],
)
def test_unit_that_cannot_start_is_refused(
    command: str, account: str, config: str | None, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        service_unit.unit([command], user=False, account=account, config=config)
    assert says in capsys.readouterr().err


def test_unit_is_written_once_and_not_over_another(tmp_path: Path) -> None:
    target = tmp_path / "hearthd.service"
    done = hearthd("install-service", "--user", "--path", str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "") and target.stat().st_mode & 0o777 == 0o644
    assert done.stdout == (
        f"{target}: written\nnext: systemctl --user daemon-reload && systemctl --user enable --now hearthd\n"
    )
    assert target.read_text() == hearthd("install-service", "--user").stdout
    assert "up to date" in hearthd("install-service", "--user", "--path", str(target)).stdout
    target.write_text("[Unit]\n")
    refused = hearthd("install-service", "--user", "--path", str(target))
    assert refused.returncode == 1 and "the file exists and differs" in refused.stderr
    assert target.read_text() == "[Unit]\n"
