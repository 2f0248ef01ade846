"""`hearthd audit`: verifies an audit log, and adds keys for its signatures.

Exit status of `verify`: 0 if no problem was found, 1 if something is wrong with the log, 2 if a file cannot be used, 3
if the log is intact and the guarantee is weaker than `--require`.

typer reads annotations at run time, so their evaluation is not postponed in this file.
"""

import json as json_module
import sys
from pathlib import Path
from typing import Annotated, Any, Optional

from hearthd.cli.failure import RUNTIME_ERROR, USAGE_ERROR, fail

_WEAKER = 3
"""Exit status of `verify` if the guarantee is weaker than `--require`."""
_TELLS = {
    "chain": "chain only: detects a changed line; a writer of the file could have rewritten it, or cut its end",
    "keyed": "keyed: detects lines that were written without the key; the end could have been cut",
    "anchored": "anchored: detects lines that were written without the key, changed or cut",
}


def add_to(app: Any) -> None:
    """Adds the group of commands to the typer application."""
    import typer

    audit = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Inspect the audit log.")
    app.add_typer(audit, name="audit")
    File = Annotated[Path | None, typer.Option("--config", "-c", help="TOML file: names the log, its key and anchor.")]

    @audit.command("verify")
    def verify(
        files: Annotated[
            Optional[list[Path]],  # noqa: UP045
            typer.Argument(help="The log, preceded by its rotated files, oldest first.", show_default=False),
        ] = None,
        key: Annotated[
            Optional[Path],  # noqa: UP045
            typer.Option(help="The key file. Default: the daemon's usual key file, if it can be read."),
        ] = None,
        anchor: Annotated[
            Optional[list[Path]],  # noqa: UP045
            typer.Option(help="A file that contains anchors: audit.anchor, a journal or a log; - for standard input."),
        ] = None,
        require: Annotated[
            str, typer.Option(help="chain, keyed or anchored: exit with status 3 if the guarantee is less.")
        ] = "chain",
        config: File = None,
        json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    ) -> None:
        """Check that no line of an audit log was changed, removed or made up, and say what that check can show."""
        _verify(files or [], key, anchor or [], require, config, json)

    @audit.command("rotate-key")
    def rotate_key(
        file: Annotated[Optional[Path], typer.Argument(help="The key file.", show_default=False)] = None,  # noqa: UP045
        config: File = None,
    ) -> None:
        """Add a key, which signs from the daemon's next reload on; older ones stay, to verify what they signed."""
        from hearthd.front.audit.keys import KeyFileError, rotate

        path = str(file) if file is not None else _settings(config).key_path
        try:
            made = rotate(path)
        except KeyFileError as error:
            fail(str(error), USAGE_ERROR)
        print(f"{path}: key {made.id} was added; it signs from the next reload on (systemctl reload hearthd)")


def _settings(config: Path | None) -> Any:
    """Returns the section `[audit]` of a configuration file; the defaults if no file is given."""
    from hearthd.front.config.loader import Config, ConfigError, load

    if config is None:
        return Config().audit
    try:
        return load(config)[0].audit
    except ConfigError as error:
        fail(str(error), USAGE_ERROR)


def _verify(
    files: list[Path], key: Path | None, anchors: list[Path], require: str, config: Path | None, as_json: bool
) -> None:
    from hearthd.front.audit.verify import Guarantee
    from hearthd.front.audit.verify import verify as check
    from hearthd.front.config.audit import AuditSettings

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
        verdict = check(_lines(files), keys, _anchors(anchors, settings), strict=explicit)
    except OSError as error:
        fail(f"{error.filename or files[0]}: {error.strerror or error}", USAGE_ERROR)
    names = ", ".join(map(str, files))
    _print(verdict, names, as_json)
    if verdict.problems:
        raise SystemExit(RUNTIME_ERROR)
    if not verdict.guarantee.covers(Guarantee(require)):
        fail(f"{names}: {verdict.guarantee} is less than --require {require}", _WEAKER)


def _keys(path: str, explicit: bool) -> Any:
    """Returns the keys of a file; None if no file was given and the default one cannot be used."""
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
        shown = {name: getattr(verdict, name) for name in ("lines", "entries", "head", "begins", "problems", "missing")}
        shown |= {"signed": verdict.signed, "unknown_keys": verdict.unknown_keys, "anchored": verdict.anchored}
        print(json_module.dumps({"ok": not verdict.problems, "guarantee": verdict.guarantee, **shown}, indent=2))
        return
    for problem in verdict.problems:
        print(f"hearthd: {names}: {problem}", file=sys.stderr)
    print(f"{verdict.lines} lines, last hash {verdict.head or 'none'}")
    if verdict.begins not in ("", GENESIS):
        print(f"continues a file whose last hash is {verdict.begins}")
    if verdict.goes_on:
        print("ends where the log continues in another file")
    if verdict.missing:
        print(f"{verdict.missing} events are missing: the daemon could not write them")
    if verdict.unknown_keys:
        print(f"signed by unknown keys: {', '.join(verdict.unknown_keys)}; name their file with --key")
    upto = f" up to entry {verdict.anchored} of {verdict.entries}" if verdict.anchored else ""
    tells, _, rest = _TELLS[verdict.guarantee].partition(":")
    print(
        f"guarantee: {tells}{upto}:{rest}"
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

    found: list[Any] = []
    if not paths and settings.path and settings.anchor_path.startswith("/"):
        try:
            with Path(settings.anchor_path).open("rb") as file:
                return list(read(file))
        except OSError:
            return []
    for path in paths:
        try:
            if str(path) == "-":
                found += read(sys.stdin.buffer)
            else:
                with path.open("rb") as file:
                    found += read(file)
        except OSError as error:
            fail(f"{path}: {error.strerror or error}", USAGE_ERROR)
    return found
