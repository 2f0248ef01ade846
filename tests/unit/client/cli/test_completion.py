"""Shell completion: scripts generated from the parser, run in the shells themselves."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from hearth.cli import completion, main
from tests.support.programs import program


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the script of each shell."""
    folder = tmp_path_factory.mktemp("completion")
    for shell in ("bash", "zsh", "fish"):
        (folder / shell).write_text(completion.script(main.build_parser(), shell))
    return folder


def shell(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0 and not done.stderr, done.stderr
    return done.stdout


ASKED = """
ask() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=(); _hearth; echo "${COMPREPLY[*]}"; }
"""


@pytest.fixture(scope="module")
def bash(scripts: Path) -> Any:
    """Function that completes command lines, all in one shell."""

    def complete(lines: list[list[str]]) -> list[list[str]]:
        asks = "\n".join(f"ask {shlex.join(line)}" for line in lines)
        script = f"set -eu; . {shlex.quote(str(scripts / 'bash'))}\n{ASKED}\n{asks}"
        answers = shell(program("bash"), "--noprofile", "--norc", "-c", script).split("\n")[:-1]
        return [answer.split() for answer in answers]

    return complete


def test_bash(bash: Any, scripts: Path) -> None:
    _, commands = completion.describe(main.build_parser())
    every = [command.name for command in commands]
    replies = bash(
        [
            ["hearth", ""],
            ["hearth", "st"],
            ["hearth", "--v"],
            ["hearth", "completion", ""],
            ["hearth", "sessions", "e"],
            ["hearth", "status", "--wa"],
            ["hearth", "status", "--token", ""],
            ["hearth", "status", "--ca", f"{scripts}/ba"],
            ["hearth", "--version", "dev"],
            ["hearth", "melt", "-"],
        ]
    )
    assert replies == [
        every, ["status"], ["--version"], ["bash", "fish", "zsh"], ["end"], ["--wait"], [], [f"{scripts}/bash"],
        ["devices"], [],
    ]  # fmt: skip


def test_every_option_of_every_command(bash: Any) -> None:
    """The completed options are those of argparse."""
    _, commands = completion.describe(main.build_parser())
    assert len(commands) >= 8
    replies = bash([["hearth", command.name, "--"] for command in commands])
    for command, options in zip(commands, replies, strict=True):
        names = [name for option in command.options for name in option.names if name.startswith("--")]
        assert options == names, command.name
        assert "--help" in names and ("--json" in names or command.name in ("completion", "run"))


def test_fish(scripts: Path) -> None:
    script = f"source {scripts}/fish; for l in 'hearth st' 'hearth sessions e' 'hearth completion ' 'hearth top --on'; "
    replies = shell(program("fish"), "--no-config", "-c", f"{script} complete -C $l; end").splitlines()
    assert [line.split("\t")[0] for line in replies] == ["status", "end", "bash", "fish", "zsh", "--once"]


def test_zsh_accepts_the_script(scripts: Path) -> None:
    """Zsh accepts the script both autoloaded and sourced."""
    zsh = program("zsh")
    shell(zsh, "-f", "-n", str(scripts / "zsh"))
    says = shell(zsh, "-f", "-c", f"compdef() {{ print $* }}; source {scripts}/zsh; whence -w _hearth")
    assert says == "_hearth hearth\n_hearth: function\n"


def test_an_unknown_shell(capsys: Any) -> None:
    with pytest.raises(SystemExit) as ended:
        main.main(["completion", "tcsh"])
    assert ended.value.code == 2 and "'bash', 'fish', 'zsh'" in capsys.readouterr().err
    assert main.main(["completion", "bash"]) == 0
    assert "complete -F _hearth hearth" in capsys.readouterr().out
