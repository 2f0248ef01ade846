"""The command line of `hearthd`: help, usage errors, the order of arguments, completion."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hearthd.cli import completion
from hearthd.cli.main import build_parser
from tests.support.daemon.harness import environment, hearthd

COMMANDS = [
    "serve", "check-config", "print-config", "token", "health", "make-certificate", "audit", "example-config",
    "install-service", "version", "demo",
]  # fmt: skip


def test_help_of_each_command_has_its_exit_statuses() -> None:
    parser = build_parser()
    group = parser.commands()
    assert group is not None and list(group.choices) == COMMANDS
    audit = group.choices["audit"].commands()
    assert audit is not None
    for name, command in {**group.choices, **audit.choices, "": parser}.items():
        if name != "audit":
            assert "exit status:\n  0    " in command.format_help() and "\n  2    " in command.format_help(), name


def test_help_does_not_import_the_daemon() -> None:
    code = (
        "import sys; sys.argv = ['hearthd', '--help']\nimport hearthd.cli.main\n"
        "try: hearthd.cli.main.main()\nexcept SystemExit as over: assert over.code == 0\n"
        "print([m for m in sys.modules if m in ('hearthd.front', 'asyncio', 'pydantic', 'grpc')], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True)
    assert done.stderr == "[]\n"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("serv", "hearthd: there is no command 'serv'; did you mean serve? (see hearthd --help)"),
        (
            "audit verifi",
            "hearthd audit: there is no command 'verifi'; did you mean verify? (see hearthd audit --help)",
        ),
        ("serve --grcp x", "hearthd serve: there is no option --grcp; did you mean --grpc? (see hearthd serve --help)"),
        ("--versoin", "hearthd: there is no option --versoin; did you mean --version? (see hearthd --help)"),
        ("version now", "hearthd version: unexpected argument 'now' (see hearthd version --help)"),
        ("print-config --cpu-count x", "--cpu-count: 'x' is not an integer"),
        ("health --timeout 0", "'0' is not a number of seconds from 0.01 to 3600"),
        ("health --timeout inf", "'inf' is not a number of seconds from 0.01 to 3600"),
        ("health --timeout 1e20", "'1e20' is not a number of seconds from 0.01 to 3600"),
        ("make-certificate --days 3651 a", "'3651' is not a number of days from 1 to 3650"),
        ("make-certificate", "required: NAME"),
    ],
)
def test_usage_error_is_one_line_with_the_closest_name(arguments: str, told: str) -> None:
    done = hearthd(*arguments.split())
    assert done.returncode == 2 and told in done.stderr and done.stderr.count("\n") == 1, done.stderr


@pytest.mark.parametrize("arguments", [[], ["audit"]])
def test_missing_command_prints_the_help(arguments: list[str]) -> None:
    done = hearthd(*arguments)
    assert done.returncode == 2 and not done.stdout and "commands:\n" in done.stderr


def test_options_and_positional_arguments_in_any_order(tmp_path: Path) -> None:
    path = tmp_path / "hearth.toml"
    path.write_text("[sessions]\nmax = 7\n")
    for arguments in (["--json", str(path)], [str(path), "--json"], ["--secure", str(path), "--json"]):
        shown = {each["setting"]: each["value"] for each in json.loads(hearthd("print-config", *arguments).stdout)}
        assert shown["sessions.max"] == 7 and shown["insecure"] is False
    log = tmp_path / "audit.log"
    log.write_text("")
    done = hearthd("audit", "verify", str(log), "--require", "keyed", str(log))
    assert done.returncode == 3 and "is weaker than --require keyed" in done.stderr


# ---- completion ----


def completed(*before: str, begun: str = "") -> list[str]:
    return list(completion.candidates(build_parser(), before, begun))


def test_candidates() -> None:
    assert completed() == COMMANDS and completed(begun="e") == ["example-config"]
    assert completed("audit") == ["verify", "rotate-key"]
    assert completed("audit", "verify", begun="--re") == ["--require"]
    assert completed("--version", begun="--show") == ["--show-completion"]
    assert completed("serve", "--config") == [] == completed("example-config")
    assert completed("serve", "--config", "audit", begun="--inst") == ["--instance"]


@pytest.mark.parametrize(
    ("variables", "stdout", "status"),
    [
        ({"_HEARTHD_COMPLETE": "complete_bash", "COMP_WORDS": "hearthd\naudit\nv", "COMP_CWORD": "2"}, "verify\n", 0),
        (
            {"_HEARTHD_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": "hearthd vers"},
            "local -a found; found=('version:print the version, as --version does'); _describe argument found\n",
            0,
        ),
        ({"_HEARTHD_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": "hearthd serve --config "}, "_files\n", 0),
        (
            {
                "_HEARTHD_COMPLETE": "complete_fish",
                "_TYPER_COMPLETE_ARGS": "hearthd audit r",
                "_TYPER_COMPLETE_FISH_ACTION": "get-args",
            },
            "rotate-key\tadd a key, which signs from the daemon's next reload on\n",
            0,
        ),
        (
            {
                "_HEARTHD_COMPLETE": "complete_fish",
                "_TYPER_COMPLETE_ARGS": "hearthd serve -c ",
                "_TYPER_COMPLETE_FISH_ACTION": "is-args",
            },
            "",
            1,
        ),
        ({"_HEARTHD_COMPLETE": "complete_tcsh"}, "", 2),
    ],
)
def test_answers_of_shells(variables: dict[str, str], stdout: str, status: int) -> None:
    done = hearthd(env=environment(**variables))
    assert (done.stdout, done.returncode) == (stdout, status), done.stderr


def test_completion_is_installed_once_in_each_shell(tmp_path: Path) -> None:
    (tmp_path / ".bashrc").write_text("alias x=y")
    for _ in range(2):
        path = completion.install("bash", tmp_path)
        assert path == tmp_path / ".bash_completions" / "hearthd.sh" and "complete_bash" in path.read_text()
        assert (tmp_path / ".bashrc").read_text() == f"alias x=y\nsource '{path}'\n"
        assert "#compdef hearthd" in completion.install("zsh", tmp_path).read_text()
        assert (tmp_path / ".zshrc").read_text().count("~/.zfunc") == 1
        assert "complete --command hearthd" in completion.install("fish", tmp_path).read_text()
    shown = subprocess.run(
        ["bash", "-c", f"'{sys.executable}' -m hearthd --show-completion; true"],
        env=environment(), capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert shown.stdout == path.read_text()
