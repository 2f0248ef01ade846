"""`hearthd audit`: verifies an audit log, and adds keys for its signatures.

Exit status of `verify`: 0 if no problem was found, 1 if a problem was found, 2 if a file cannot be used, 3 if the log
is intact but the guarantee is weaker than `--require`.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from hearthd.cli import flags
from hearthd.cli.failure import RUNTIME_ERROR, USAGE_ERROR, fail
from hearthd.cli.parser import Parser, add_command, add_json

_WEAKER = 3
"""Exit status of `verify` if the guarantee is weaker than `--require`."""
_DESCRIPTIONS = {
    "chain": "chain only: detects a changed line; a writer of the file could have rewritten it, or cut its end",
    "keyed": "keyed: detects lines that were written without the key; the end could have been cut",
    "anchored": "anchored: detects lines that were written without the key, changed or cut",
}


def add_to(commands: Any) -> None:
    """Adds the group of commands and their arguments."""
    audit: Parser = commands.add_parser("audit", help="inspect the audit log", description="Inspects the audit log.")
    subcommands = audit.add_subparsers(title="commands", metavar="COMMAND")
    names_config = "TOML file that names the log, its key and anchor"

    verify = add_command(
        subcommands,
        run_verify,
        "verify",
        "check that no line of an audit log was changed, removed or forged",
        "Checks that no line of an audit log was changed, removed or forged, and prints what the check guarantees.",
        statuses={
            0: "no problem was found",
            1: "a problem was found",
            2: "usage error, or a file cannot be used",
            _WEAKER: "the log is intact, but the guarantee is weaker than --require",
        },
        examples=(
            "hearthd audit verify --config /etc/hearth/hearth.toml --require keyed",
            "journalctl -u hearthd -o cat | hearthd audit verify audit.log --anchor -",
        ),
    )
    verify.add_argument(
        "files", nargs="*", type=Path, metavar="FILE", help="the log, preceded by its rotated files, oldest first"
    )
    verify.add_argument(
        "--key", type=Path, metavar="FILE", help="key file; default: the daemon's usual key file, if it can be read"
    )
    verify.add_argument(
        "--anchor",
        action="append",
        type=Path,
        metavar="FILE",
        help="file that contains anchors: audit.anchor, a journal or a log; - for standard input; can be repeated",
    )
    verify.add_argument(
        "--require",
        default="chain",
        metavar="GUARANTEE",
        help=f"chain, keyed or anchored: exit with status {_WEAKER} if the guarantee is weaker (%(default)s)",
    )
    flags.add_config(verify, names_config)
    add_json(verify)

    rotate = add_command(
        subcommands,
        run_rotate_key,
        "rotate-key",
        "add a key, which signs from the daemon's next reload on",
        "Adds a key, which signs from the daemon's next reload on. Older keys remain, to verify what they signed.",
    )
    rotate.add_argument("file", nargs="?", type=Path, metavar="FILE", help="the key file")
    flags.add_config(rotate, names_config)


def run_rotate_key(arguments: argparse.Namespace) -> int:
    """Adds a key to the key file. Raises `SystemExit` if the file cannot be used."""
    from hearthd.front.audit.keys import KeyFileError, rotate

    path = str(arguments.file) if arguments.file is not None else _settings(arguments.config).key_path
    try:
        key = rotate(path)
    except KeyFileError as error:
        fail(str(error), USAGE_ERROR)
    print(f"{path}: key {key.id} was added; it signs from the next reload on (systemctl reload hearthd)")
    return 0


def _settings(config: Path | None) -> Any:
    """Returns the section `[audit]` of a configuration file; the defaults if no file is given."""
    from hearthd.front.config.loader import Config

    return Config().audit if config is None else flags.load(config, {})[0].audit


def run_verify(arguments: argparse.Namespace) -> int:
    """Verifies the log, prints the result, and returns the exit status, or raises it as `SystemExit`."""
    from hearthd.front.audit.verify import Guarantee
    from hearthd.front.audit.verify import verify as check
    from hearthd.front.config.audit import AuditSettings

    files: list[Path] = arguments.files
    key: Path | None = arguments.key
    config: Path | None = arguments.config
    require: str = arguments.require
    if require not in list(Guarantee):
        fail(f"--require {require}: use {', '.join(Guarantee)}", USAGE_ERROR)
    settings = _settings(config)
    if not files:
        if not settings.path:
            fail("no log is named: give a file, or --config with audit.path", USAGE_ERROR)
        files = [Path(settings.path)]
    elif config is None and files[-1].is_absolute():
        settings = AuditSettings(path=str(files[-1]))
    explicit = key is not None or config is not None
    keys = _keys(str(key or settings.key_path), explicit)
    try:
        verdict = check(_lines(files), keys, _anchors(arguments.anchor or [], settings), strict=explicit)
    except OSError as error:
        fail(f"{error.filename or files[0]}: {error.strerror or error}", USAGE_ERROR)
    names = ", ".join(map(str, files))
    _print(verdict, names, arguments.json)
    if verdict.problems:
        return RUNTIME_ERROR
    if not verdict.guarantee.covers(Guarantee(require)):
        fail(f"{names}: {verdict.guarantee} is weaker than --require {require}", _WEAKER)
    return 0


def _keys(path: str, explicit: bool) -> Any:
    """Returns the keys of a file; None if no file was given and the default file cannot be used."""
    from hearthd.front.audit.keys import KeyFileError, load

    if not path or not (explicit or Path(path).exists()):
        return None
    try:
        return load(path)
    except KeyFileError as error:
        if explicit:
            fail(str(error), USAGE_ERROR)
        return None


def _print(verdict: Any, names: str, as_json: bool) -> None:
    from hearthd.front.audit.log_file import GENESIS

    if as_json:
        document = {
            name: getattr(verdict, name) for name in ("lines", "entries", "head", "begins", "problems", "missing")
        }
        document |= {"signed": verdict.signed, "unknown_keys": verdict.unknown_keys, "anchored": verdict.anchored}
        print(json.dumps({"ok": not verdict.problems, "guarantee": verdict.guarantee, **document}, indent=2))
        return
    for problem in verdict.problems:
        print(f"hearthd: {names}: {problem}", file=sys.stderr)
    print(f"{verdict.lines} lines, last hash {verdict.head or 'none'}")
    if verdict.begins not in ("", GENESIS):
        print(f"continues a file whose last hash is {verdict.begins}")
    if verdict.continues:
        print("the log continues in another file")
    if verdict.missing:
        print(f"{verdict.missing} events are missing: the daemon could not write them")
    if verdict.unknown_keys:
        print(f"signed by unknown keys: {', '.join(verdict.unknown_keys)}; name their file with --key")
    extent = f" up to entry {verdict.anchored} of {verdict.entries}" if verdict.anchored else ""
    name, _, meaning = _DESCRIPTIONS[verdict.guarantee].partition(":")
    print(
        f"guarantee: {name}{extent}:{meaning}"
        if not verdict.problems
        else "guarantee: none, because the verification failed"
    )


def _lines(files: list[Path]) -> Any:
    for path in files:
        with path.open("rb") as file:
            yield from file


def _anchors(paths: list[Path], settings: Any) -> list[Any]:
    """Returns the anchors of the given files; without files, of the default file if it can be read."""
    from hearthd.front.audit.anchors import read

    anchors: list[Any] = []
    if not paths and settings.path and settings.anchor_path.startswith("/"):
        try:
            with Path(settings.anchor_path).open("rb") as file:
                return list(read(file))
        except OSError:
            return []
    for path in paths:
        try:
            if str(path) == "-":
                anchors += read(sys.stdin.buffer)
            else:
                with path.open("rb") as file:
                    anchors += read(file)
        except OSError as error:
            fail(f"{path}: {error.strerror or error}", USAGE_ERROR)
    return anchors
