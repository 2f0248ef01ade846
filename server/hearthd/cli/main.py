"""The command line of `hearthd`.

Device processes import the main module again, so nothing heavy is imported here before `main` runs. typer reads
annotations at run time, so their evaluation is not postponed in this file.
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NoReturn, Optional

from hearthd.cli.failure import RUNTIME_ERROR, USAGE_ERROR, fail

_hangup: Any = None
"""The `hearthd.shared.sighup.Hangup` of `hearthd serve`; None for other commands."""


def _not_served() -> None:
    """Ends the forkserver that `main` started, because nothing will be served."""
    if "hearthd.front.supervisor.forkserver" in sys.modules:
        from hearthd.front.supervisor import forkserver

        forkserver.abandon()


def _load(path: Path | None, flags: dict[tuple[str, ...], Any]) -> tuple[Any, dict[tuple[str, ...], str]]:
    from hearthd.front.config.loader import ConfigError, load

    try:
        return load(path, flags=flags)
    except ConfigError as error:
        fail(str(error), USAGE_ERROR)


def _serve(path: Path | None, flags: dict[tuple[str, ...], Any], instance: str = "") -> NoReturn:
    config, _ = _load(path, flags)
    if instance:
        config, flags = _as_instance(config, path, flags, instance)
    from hearthd.front.config.loader import load
    from hearthd.shared import log

    log.configure(config.log.level, config.log.format)
    from hearthd.front.daemon.main import serve

    raise SystemExit(serve(config, read=lambda: load(path, flags=flags)[0], hangup=_hangup))


def _as_instance(
    config: Any, path: Path | None, flags: dict[tuple[str, ...], Any], name: str
) -> tuple[Any, dict[tuple[str, ...], Any]]:
    """Returns the configuration and the flags with the ports and sockets of an instance, and prints its target."""
    from hearthd.cli import instance

    try:
        flags = {**flags, **instance.overrides(config, name, flags)}
    except ValueError as error:
        fail(str(error), USAGE_ERROR)
    config, _ = _load(path, flags)
    print(instance.announcement(config, name), flush=True)
    return config, flags


def _check_config(path: Path | None, flags: dict[tuple[str, ...], Any], as_json: bool, strict: bool) -> None:
    """Prints whether the daemon would start, and warnings about settings that may be unintended."""
    import json

    from hearthd.cli.config_lint import advise
    from hearthd.front.config.loader import ConfigError, config_path, load, tenants
    from hearthd.shared import log

    log.configure("error", "console")
    error, advice = "", []
    try:
        config, _ = load(path, flags=flags)
        tenants(config)
        advice = advise(config, config_path(path))
    except ConfigError as wrong:
        error = str(wrong)
    if as_json:
        warnings = [{"setting": each.setting, "warning": each.text} for each in advice]
        print(json.dumps({"ok": not error, "error": error or None, "warnings": warnings}, indent=2))
    for each in () if as_json else advice:
        print(f"warning: {each}")
    if error:
        if as_json:
            raise SystemExit(USAGE_ERROR)
        fail(str(error), USAGE_ERROR)
    if not as_json:
        print("ok" + (f", {len(advice)} warning{'s' * (len(advice) > 1)}" if advice else ""))
    if strict and advice:
        raise SystemExit(RUNTIME_ERROR)


def _print_config(path: Path | None, flags: dict[tuple[str, ...], Any], as_json: bool) -> None:
    from hearthd.cli import print_config

    config, origins = _load(path, flags)
    text = print_config.as_json(config, origins) if as_json else print_config.as_toml(config, origins)
    print(text, end="\n" if as_json else "")


def _print_token(name: str, expires: str | None) -> None:
    """Prints a token of 256 random bits, and its entry for the configuration."""
    import hashlib

    from pydantic import ValidationError

    from hearthd.cli.print_config import inline
    from hearthd.front.config.tenants import TokenSettings
    from hearthd.front.tenancy import tokens

    token = tokens.make()
    entry = {"hash": f"sha256:{hashlib.sha256(token.encode()).hexdigest()}"}
    entry |= {"name": name} if name else {}
    entry |= {"expires": expires} if expires else {}
    try:
        TokenSettings.model_validate(entry)
    except ValidationError as error:
        fail(error.errors()[0]["msg"].removeprefix("Value error, "), USAGE_ERROR)
    print("# The token, for the client (HEARTH_TOKEN); it is shown only this once and is not stored:")
    print(token)
    print("# For the daemon, an entry of `tokens` of a tenant in its configuration:")
    print(inline(entry))


FLAGS: dict[str, tuple[tuple[str, ...], type, str]] = {
    "grpc": (("listen", "grpc"), str, 'Address for gRPC, "host:port"; empty: none. Default: 127.0.0.1:7421.'),
    "http": (("listen", "http"), str, 'Address for HTTP, "host:port"; empty: none. Default: 127.0.0.1:7422.'),
    "unix": (("listen", "unix"), str, "Path of the Unix socket; empty: none. Default: auto."),
    "lanes": (
        ("listen", "lanes"),
        str,
        'Address for bulk data, "host:port"; empty: none. Default: 127.0.0.1:7423.',
    ),
    "backend": (("devices", "backend"), str, "auto, cuda or cpu. Default: auto."),
    "cpu_count": (("devices", "cpu_count"), int, "Virtual devices of the CPU backend. Default: 2."),
    "log_level": (("log", "level"), str, "debug, info, warning or error. Default: info."),
    "log_format": (("log", "format"), str, "json, console or auto. Default: auto."),
    "insecure": (
        ("insecure",),
        bool,
        "Serve other hosts without TLS and tenants. Default: --secure.",
    ),
}
"""Settings that have a flag on the command line: path, type, help."""


def _with_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Returns a command that also accepts `FLAGS`, and passes their values to `command` as `flags`, by path."""
    import inspect

    import typer

    def run(**given: Any) -> None:
        command(flags={path: given.pop(name) for name, (path, _, _) in FLAGS.items()}, **given)

    parameters = [each for each in inspect.signature(command).parameters.values() if each.name != "flags"]
    for name, (_, kind, text) in FLAGS.items():
        names = ("--insecure/--secure",) if name == "insecure" else (f"--{name.replace('_', '-')}",)
        annotation: Any = Annotated[Optional[kind], typer.Option(*names, help=text, show_default=False)]  # noqa: UP045
        keyword = inspect.Parameter.KEYWORD_ONLY
        parameters.append(inspect.Parameter(name, keyword, default=None, annotation=annotation))
    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    return run


def build_app() -> Any:
    """Returns the typer application."""
    import typer

    from hearthd.cli import audit, certificate, example_config, health_check, service_unit

    app = typer.Typer(
        name="hearthd",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # plain help, as of `hearth`; markup takes "[tls]" for a style
    )
    File = Annotated[Optional[Path], typer.Option("--config", "-c", help="TOML file.", show_default=False)]  # noqa: UP045
    Named = Annotated[Optional[Path], typer.Argument(metavar="FILE", help="The same as --config.", show_default=False)]  # noqa: UP045
    Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]

    def option(text: str) -> Any:
        return typer.Option(help=text, show_default=False)

    def either(named: Path | None, config: Path | None) -> Path | None:
        if named is not None and config is not None and named != config:
            fail(f"two files are named, {named} and {config}; name one", USAGE_ERROR)
        return named if named is not None else config

    def show_version(asked: bool) -> None:
        if asked:
            from hearth_proto import VERSION

            print(f"hearthd {VERSION}")
            raise typer.Exit

    @app.callback()
    def options(
        version: Annotated[
            bool, typer.Option("--version", help="Print the version.", callback=show_version, is_eager=True)
        ] = False,
    ) -> None:
        """The daemon that owns this node's GPUs."""

    @app.command()
    @_with_flags
    def serve(
        flags: Any,
        config: File = None,
        instance: Annotated[
            str, option("Name of a further daemon on this machine: free ports, and sockets with this name.")
        ] = "",
    ) -> None:
        """Serve this node's devices."""
        _serve(config, flags, instance)

    @app.command("check-config")
    @_with_flags
    def check_config(
        flags: Any,
        file: Named = None,
        config: File = None,
        json: Json = False,
        strict: Annotated[bool, typer.Option("--strict", help="Exit with status 1 if there are warnings.")] = False,
    ) -> None:
        """Check whether the daemon would start.

        Reads the file, the environment and the flags, and warns about settings that may be unintended.
        """
        _check_config(either(file, config), flags, json, strict)

    @app.command("print-config")
    @_with_flags
    def print_config(flags: Any, file: Named = None, config: File = None, json: Json = False) -> None:
        """Print each setting, its value and its origin.

        Reads the file, the environment and the flags, as `serve` does.
        """
        _print_config(either(file, config), flags, json)

    @app.command()
    def token(
        name: Annotated[str, option("Name of the token in the audit log.")] = "",
        expires: Annotated[str | None, option("The last day on which it is valid, YYYY-MM-DD.")] = None,
    ) -> None:
        """Make a token, and its hash for the configuration."""
        _print_token(name, expires)

    health_check.add_to(app)

    certificate.add_to(app)

    audit.add_to(app)

    example_config.add_to(app)

    service_unit.add_to(app)

    @app.command()
    def version() -> None:
        """Print the version, as --version does."""
        show_version(True)

    @app.command()
    def demo() -> None:
        """Run the demonstration."""
        import importlib

        raise typer.Exit(importlib.import_module("hearthd.cli.demo").main())

    return app


def main() -> None:
    """Runs the command line: the entry point of the console script.

    Raises:
        SystemExit: The command failed, or its exit status is not 0.
    """
    try:
        _run()
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] in ("hearthd", "hearth_proto"):
            raise
        _not_served()
        fail(
            f"the Python package {missing.name!r} is not installed; the client alone does without it, the daemon does "
            "not. Fix: install the extra hearth-gpu[server], or with GPUs [cuda12] or [cuda13]: in a clone "
            "pip install '.[server]', from a wheel pip install 'hearth-gpu[server] @ file:///PATH/NAME.whl'",
            RUNTIME_ERROR,
        )
    except SystemExit as over:
        if over.code == USAGE_ERROR:
            _not_served()  # an invalid flag, or an invalid configuration
        raise


def _run() -> None:
    global _hangup  # noqa: PLW0603 - typer calls the function that needs it
    if sys.argv[1:2] == ["serve"] and "--help" not in sys.argv:
        from hearthd.shared import sighup

        _hangup = sighup.begin()
        from hearthd.front.supervisor import forkserver

        forkserver.begin(sys.argv[2:], os.environ)  # first, because its imports take as long as everything after it
    build_app()()
