"""`hearthd install-service`: the systemd unit of this installation.

Prints or writes `deploy/systemd/hearthd.service`, or the unit of a user without root, with this installation's program,
account and configuration file. Does not run `systemctl`.
"""

from __future__ import annotations

import argparse
import re
import shlex
import sys
from pathlib import Path
from typing import Any

from hearthd.cli.example_config import deploy_file
from hearthd.cli.failure import RUNTIME_ERROR, USAGE_ERROR, fail
from hearthd.cli.parser import add_command

_NAME = "hearthd.service"
_SYSTEM_CONFIG = "/etc/hearth/hearth.toml"
_USER_CONFIG = "%E/hearth/hearth.toml"
"""`%E` is the user's directory of configurations, ~/.config by default (systemd.unit(5), "Specifiers")."""
_HIDDEN = ("/home", "/root", "/run/user", "/tmp", "/var/tmp")
"""Directories that are empty for the system unit (ProtectHome=, PrivateTmp=)."""
_ACCOUNT = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,30}")
_PROGRAM_IN_UNIT = re.compile(r"(?<==)\S*/bin/hearthd(?= )")
_CONFIG_IN_UNIT = re.compile(r"(?<=--config )\S+")


def add_to(commands: Any) -> None:
    """Adds the command and its arguments."""
    parser = add_command(
        commands,
        run,
        "install-service",
        "print or write the systemd unit of this installation",
        "Prints or writes the systemd unit of this installation. Does not start anything.",
        statuses={1: "the file cannot be written"},
        examples=(
            "hearthd install-service --path /etc/systemd/system",
            "hearthd install-service --user --path ~/.config/systemd/user/hearthd.service",
        ),
    )
    parser.add_argument("--path", type=Path, help="write the unit to this file, or into this directory")
    parser.add_argument("--print", dest="only_print", action="store_true", help="print the unit: the default")
    parser.add_argument("--user", action="store_true", help="the unit of one user, without root")
    parser.add_argument(
        "--run-as", default="hearth", metavar="ACCOUNT", help="account of the daemon; not with --user (%(default)s)"
    )
    parser.add_argument(
        "--config",
        "-c",
        metavar="FILE",
        help=f"the daemon's TOML file; default: {_SYSTEM_CONFIG}, or that of the user",
    )


def run(arguments: argparse.Namespace) -> int:
    """Prints or writes the unit. Raises `SystemExit` if it would not start, or cannot be written."""
    path: Path | None = arguments.path
    if arguments.only_print and path is not None:
        fail("--print and --path exclude each other", USAGE_ERROR)
    text = unit(program(), user=arguments.user, account=arguments.run_as, config=arguments.config)
    if path is None:
        print(text, end="")
        return 0
    target = path / _NAME if path.is_dir() else path
    try:
        written = write(text, target)
    except OSError as error:
        fail(f"{target}: cannot be written: {error.strerror or error}", RUNTIME_ERROR)
    scope = "systemctl --user" if arguments.user else "systemctl"
    print(f"{target}: {'written' if written else 'up to date'}")
    print(f"next: {scope} daemon-reload && {scope} enable --now {target.stem}")
    return 0


def program() -> list[str]:
    """Returns the command of this installation: the script `hearthd` in the directory of the interpreter.

    If there is no script, the command is the interpreter with ``-m hearthd``.
    """
    interpreter = Path(sys.executable)
    script = interpreter.with_name("hearthd")
    return [str(script)] if script.exists() else [str(interpreter), "-m", "hearthd"]


def unit(command: list[str], *, user: bool, account: str = "hearth", config: str | None = None) -> str:
    """Returns the text of the unit.

    Args:
        command: The command of the daemon, without arguments.
        user: True: the unit of one user, without root.
        account: User and group of the daemon; ignored if `user` is True.
        config: Absolute path of the configuration file. None: the default.

    Raises:
        SystemExit: The unit would not start.
    """
    if config is not None and not Path(config).is_absolute():
        fail(f"--config {config}: the path must be absolute, because the unit runs in another directory", USAGE_ERROR)
    if not user:
        _check_system(command[0], account)
    source = deploy_file(f"systemd/{'user/' if user else ''}{_NAME}").read_text()
    _, body = source.split("\n\n", 1)  # the header describes the installation from a clone
    default = _USER_CONFIG if user else _SYSTEM_CONFIG
    program_text = " ".join(map(_escaped, command))
    config_text = default if config is None else _escaped(config)
    body = _PROGRAM_IN_UNIT.sub(lambda _: program_text, body)
    body = _CONFIG_IN_UNIT.sub(lambda _: config_text, body)
    if not user:
        body = body.replace("User=hearth\nGroup=hearth\n", f"User={account}\nGroup={account}\n")
    return f"{_header(command, user, account, config)}\n\n{body}"


def write(text: str, path: Path) -> bool:
    """Writes the unit.

    Returns False if the file already has this text. Raises `OSError`, also if the file has another text.
    """
    if path.exists():
        if path.read_text() == text:
            return False
        raise FileExistsError(0, "the file exists and differs; compare it with the output of --print, and remove it")
    path.write_text(text)
    path.chmod(0o644)
    return True


def _check_system(executable: str, account: str) -> None:
    """Raises `SystemExit` if the system's unit could not start this program under this account."""
    if _ACCOUNT.fullmatch(account) is None:
        fail(f"--run-as {account!r} is not a valid account name", USAGE_ERROR)
    hidden = next((folder for folder in _HIDDEN if Path(executable).is_relative_to(folder)), None)
    if hidden is not None:
        fail(
            f"the unit cannot start {executable}, because it hides {hidden} from the daemon. Fix: install Hearth in "
            "/opt/hearth and run that installation's `hearthd install-service`, or use --user for a unit without root.",
            USAGE_ERROR,
        )


def _header(command: list[str], user: bool, account: str, config: str | None) -> str:
    """Returns the comment at the top of the unit: the commands that install it."""
    hearthd = shlex.join(command)
    if user:
        file = config or "~/.config/hearth/hearth.toml"
        unit_path = "~/.config/systemd/user/hearthd.service"
        steps = [
            f"mkdir -p {Path(file).parent} {Path(unit_path).parent}",
            f"{hearthd} example-config one-user > {file}",
            f"{hearthd} install-service --user{_option(config)} --path {unit_path}",
            "systemctl --user daemon-reload && systemctl --user enable --now hearthd",
            "loginctl enable-linger                   # to run it while the user is not logged in",
        ]
        title = "# hearthd for one user, without root. Made by `hearthd install-service --user`. To install it:"
    else:
        file = config or _SYSTEM_CONFIG
        run_as = "" if account == "hearth" else f" --run-as {account}"
        steps = [
            f"useradd --system --user-group --home-dir /var/cache/hearth --shell /usr/sbin/nologin {account}",
            f"install -d -m 0750 -g {account} {Path(file).parent}",
            f"{hearthd} example-config team > {file}     # or another example; then edit the file",
            f"chgrp {account} {file} && chmod 0640 {file}",
            f"{hearthd} install-service{run_as}{_option(config)} --path /etc/systemd/system/hearthd.service",
            "systemctl daemon-reload && systemctl enable --now hearthd",
        ]
        title = "# hearthd for all users of this host. Made by `hearthd install-service`. To install it, as root:"
    lines = [title, "#", *(f"#   {step}" for step in steps), "#", "# Change the unit by drop-ins (`systemctl edit`)."]
    return "\n".join(lines)


def _option(config: str | None) -> str:
    return "" if config is None else f" --config {config}"


def _escaped(argument: str) -> str:
    """Quotes an argument for a command of a unit (systemd.service(5), "Command lines")."""
    argument = argument.replace("%", "%%").replace("$", "$$")
    if not re.search(r"""[\s"'\\;]""", argument):
        return argument
    return '"' + argument.replace("\\", "\\\\").replace('"', '\\"') + '"'
