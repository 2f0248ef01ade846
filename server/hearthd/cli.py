"""`hearthd` on the command line.

Device processes import the main module again, so nothing heavy is imported here before `main` runs; and because typer
reads annotations at run time, they are not postponed in this file.
"""

import os
import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn, Optional

RUNTIME_ERROR = 1
USAGE_ERROR = 2


def _fail(text: str, code: int) -> NoReturn:
    print(text, file=sys.stderr)
    raise SystemExit(code)


def _not_served() -> None:
    """Ends what `main` began."""
    if "hearthd.front.forkserver" in sys.modules:
        from hearthd.front import forkserver

        forkserver.abandon()


def _load(path: Path | None, flags: dict[tuple[str, ...], Any]) -> tuple[Any, dict[tuple[str, ...], str]]:
    from hearthd.config import ConfigError, load

    try:
        return load(path, flags=flags)
    except ConfigError as error:
        _not_served()
        _fail(f"hearthd: {error}", USAGE_ERROR)


def _serve(path: Path | None, flags: dict[tuple[str, ...], Any]) -> NoReturn:
    config, _ = _load(path, flags)
    from hearthd import log

    log.configure(config.log.level, config.log.format)
    from hearthd.front.start import serve

    raise SystemExit(serve(config))


def _print_config(path: Path | None) -> None:
    """TOML, each setting that is not a default with where it comes from."""
    import json

    from hearthd.config import settings

    config, origins = _load(path, {})
    values = config.model_dump(mode="json")
    tenants = values.pop("tenants")
    section = ""
    for where in sorted(settings(), key=len):
        if where == ("tenants",):
            continue
        value = values[where[0]] if len(where) == 1 else values[where[0]][where[1]]
        if len(where) == 2 and where[0] != section:
            section = where[0]
            print(f"\n[{section}]")
        note = f"  # {origins[where]}" if where in origins else ""
        if where in (("listen", "unix"), ("cache", "dir")) and value == "auto":
            note += f"  # {config.unix_path if where[0] == 'listen' else config.cache_dir}"
        print(f"{where[-1]} = {json.dumps(value)}{note}")
    for tenant in tenants:
        print(f"\n[[tenants]]  # {origins['tenants',]}")
        for key, value in tenant.items():
            print(f"{key} = {_toml(value)}")


def _toml(value: Any) -> str:
    """A value on one line."""
    import json

    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml(inner)}" for key, inner in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value)


def _print_token(name: str, expires: str | None) -> None:
    """A token of 256 random bits, and what the configuration keeps of it."""
    import hashlib
    import secrets

    from pydantic import ValidationError

    from hearthd.front.tenant_settings import TokenSettings

    token = f"hearth_{secrets.token_urlsafe(32)}"
    entry = {"hash": f"sha256:{hashlib.sha256(token.encode()).hexdigest()}"}
    entry |= {"name": name} if name else {}
    entry |= {"expires": expires} if expires else {}
    try:
        TokenSettings.model_validate(entry)
    except ValidationError as error:
        _fail(f"hearthd: {error.errors()[0]['msg'].removeprefix('Value error, ')}", USAGE_ERROR)
    print("# The token, for the client (HEARTH_TOKEN); it is shown this once and kept nowhere:")
    print(token)
    print("# For the daemon, an entry of `tokens` of a tenant in its configuration:")
    print(_toml(entry))


def _verify_audit(path: Path) -> None:
    """Says whether the chain of an audit log holds; ends with 1 where it does not."""
    from hearthd.front.audit import GENESIS, verify

    try:
        with path.open("rb") as file:
            verdict = verify(file)
    except OSError as error:
        _fail(f"hearthd: {path}: {error.strerror or error}", USAGE_ERROR)
    for problem in verdict.problems:
        print(f"hearthd: {path}: {problem}", file=sys.stderr)
    print(f"{verdict.lines} lines, last hash {verdict.head or 'none'}")
    if verdict.begins not in ("", GENESIS):
        print(f"goes on from a file whose last hash is {verdict.begins}")
    if verdict.missing:
        print(f"{verdict.missing} events are missing: the daemon could not write them")
    if verdict.problems:
        raise SystemExit(RUNTIME_ERROR)


def build_app() -> Any:
    """The typer application."""
    import typer

    from hearthd import health_check

    app = typer.Typer(name="hearthd", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
    File = Annotated[Optional[Path], typer.Option("--config", "-c", help="TOML file.", show_default=False)]  # noqa: UP045

    def option(text: str) -> Any:
        return typer.Option(help=text, show_default=False)

    @app.command()
    def serve(
        config: File = None,
        grpc: Annotated[str | None, option('Address for gRPC, "host:port"; empty: none.')] = None,
        http: Annotated[str | None, option('Address for HTTP, "host:port"; empty: none.')] = None,
        unix: Annotated[str | None, option("Path of the Unix socket; empty: none.")] = None,
        lanes: Annotated[str | None, option('Address for bulk data over TCP, "host:port"; empty: none.')] = None,
        backend: Annotated[str | None, option("auto, cuda or cpu.")] = None,
        cpu_count: Annotated[int | None, option("Virtual devices of the CPU backend.")] = None,
        log_level: Annotated[str | None, option("debug, info, warning or error.")] = None,
        log_format: Annotated[str | None, option("json, console or auto.")] = None,
        insecure: Annotated[
            bool | None, typer.Option("--insecure/--secure", help="Allow addresses that other hosts reach.")
        ] = None,
    ) -> None:
        """Serve this node's devices."""
        _serve(
            config,
            {
                ("listen", "grpc"): grpc,
                ("listen", "http"): http,
                ("listen", "unix"): unix,
                ("listen", "lanes"): lanes,
                ("devices", "backend"): backend,
                ("devices", "cpu_count"): cpu_count,
                ("log", "level"): log_level,
                ("log", "format"): log_format,
                ("insecure",): insecure,
            },
        )

    @app.command("check-config")
    def check_config(config: File = None) -> None:
        """Say whether the configuration is valid."""
        from hearthd.config import ConfigError, tenants

        loaded, _ = _load(config, {})
        try:
            tenants(loaded)
        except ConfigError as error:
            _fail(f"hearthd: {error}", USAGE_ERROR)
        print("hearthd: the configuration is valid")

    @app.command("print-config")
    def print_config(config: File = None) -> None:
        """Print the configuration that would be used, and where each value comes from."""
        _print_config(config)

    @app.command()
    def token(
        name: Annotated[str, option("What the audit log calls it.")] = "",
        expires: Annotated[str | None, option("The last day on which it is good, YYYY-MM-DD.")] = None,
    ) -> None:
        """Make a token, and its hash for the configuration."""
        _print_token(name, expires)

    health_check.add_to(app)

    audit = typer.Typer(no_args_is_help=True, help="Look at the audit log.")
    app.add_typer(audit, name="audit")

    @audit.command("verify")
    def verify_audit(
        file: Annotated[Path, typer.Argument(help="The log, or one of its older files.", show_default=False)],
    ) -> None:
        """Check that no line of an audit log was changed or removed."""
        _verify_audit(file)

    @app.command()
    def version() -> None:
        """Print the version."""
        import hearthd

        print(f"hearthd {hearthd.version()}")

    @app.command()
    def demo() -> None:
        """Run the demonstration."""
        import importlib

        raise typer.Exit(importlib.import_module("hearthd.demo").main())

    return app


def main() -> None:
    """Entry point of the console script."""
    if sys.argv[1:2] == ["serve"] and "--help" not in sys.argv:
        from hearthd.front import forkserver

        forkserver.begin(sys.argv[2:], os.environ)  # first: its imports take as long as all that follows
    try:
        app = build_app()
    except ModuleNotFoundError as missing:
        print(
            f"hearthd: the Python package {missing.name!r} is not installed; the client alone does without it, the "
            "daemon does not. Fix: pip install 'hearth-gpu[server]', or with GPUs [cuda12] or [cuda13]",
            file=sys.stderr,
        )
        _not_served()
        raise SystemExit(RUNTIME_ERROR) from None
    try:
        app()
    except SystemExit as over:
        if over.code == USAGE_ERROR:
            _not_served()  # a flag that is none
        raise
