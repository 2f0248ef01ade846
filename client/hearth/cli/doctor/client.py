"""Checks on the client's side: its versions, its environment, its target and credentials."""

from __future__ import annotations

import argparse
import operator
import os
import platform
import re
import stat
import sys
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path

from hearth.cli.doctor.check import Check
from hearth.keywords import closest
from hearth_proto import VERSION

DISTRIBUTION = "hearth-gpu"
REQUIRED = {"grpcio": ">=1.84", "protobuf": ">=6.33.5,<8", "numpy": ">=1.26"}
"""Requirements as in pyproject.toml, for a client that is importable without being installed."""
PYTHON = (3, 11)
VARIABLES = (
    "HEARTH_TARGET", "HEARTH_TOKEN", "HEARTH_TOKEN_FILE", "HEARTH_CA", "HEARTH_CERTIFICATE", "HEARTH_KEY",
    "HEARTH_TRACE", "HEARTH_LAUNCH_BLOCKING", "HEARTH_DEBUG",
)  # fmt: skip
"""Environment variables that the client reads."""
_FILES = ("HEARTH_TOKEN_FILE", "HEARTH_CA", "HEARTH_CERTIFICATE", "HEARTH_KEY")
_SECRET_FILES = ("HEARTH_TOKEN_FILE", "HEARTH_KEY")
_PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")
_DAEMON_SECTIONS = (
    "ADMISSION", "AUDIT", "AUTH", "CACHE", "COLLECTIVES", "COMPILE", "CONNECTIONS", "DEVICES", "HEALTH", "HTTP",
    "LANES", "LAUNCH", "LIMITS", "LISTEN", "LOG", "OVERLOAD", "PROFILE", "SESSIONS", "TLS",
)  # fmt: skip
_DAEMON_PREFIXES = (
    "HEARTH_CONFIG", "HEARTH_INSECURE", "HEARTH_DRAIN_TIMEOUT", "HEARTH_CPU_RACECHECK", "HEARTH_DEBUGGABLE",
    "HEARTH_TEST_", *(f"HEARTH_{section}_" for section in _DAEMON_SECTIONS),
)  # fmt: skip
"""Beginnings of the variables that the daemon reads."""
_COMPARISONS = {
    ">=": operator.ge, "<=": operator.le, "<": operator.lt, ">": operator.gt, "==": operator.eq, "!=": operator.ne,
}  # fmt: skip


def versions(installed: Callable[[str], str] = metadata.version) -> list[Check]:
    """Checks the versions of the client, of Python and of the client's dependencies."""
    python = platform.python_version()
    checks = [
        Check("client", "ok", f"hearth {VERSION}, Python {python}")
        if sys.version_info >= PYTHON
        else Check("client", "failed", f"hearth {VERSION}, Python {python}", "use Python 3.11 or newer")
    ]
    required = _requirements()
    for name in REQUIRED:
        requirement = required[name]
        try:
            version = installed(name)
        except metadata.PackageNotFoundError:
            checks.append(Check(name, "failed", "the package is not installed", f'pip install "{name}{requirement}"'))
            continue
        if in_range(version, requirement):
            checks.append(Check(name, "ok", f"{version} ({requirement})"))
        else:
            checks.append(
                Check(
                    name, "failed", f"{version} is not in the range {requirement}", f'pip install "{name}{requirement}"'
                )
            )
    return checks


def in_range(version: str, requirement: str) -> bool:
    """True if `version` satisfies a range such as ``>=6.31.1,<8``. Pre-releases count as their release."""
    clauses = (re.fullmatch(r"\s*(>=|<=|<|>|==|!=)\s*([\d.]+)\s*", clause) for clause in requirement.split(","))
    return all(_COMPARISONS[clause[1]](_numbers(version), _numbers(clause[2])) for clause in clauses if clause)


def environment(environ: Mapping[str, str] = os.environ, *, loopback: bool = True) -> list[Check]:
    """Checks the environment variables of the client.

    Covers the variables that the client reads, unknown variables that begin with HEARTH_, and proxies in the way.
    """
    checks = []
    set_variables = [name for name in VARIABLES if environ.get(name)]
    shown = [f"{name}={environ[name]}" if name != "HEARTH_TOKEN" else f"{name} (not shown)" for name in set_variables]
    checks.append(Check("environment", "ok", ", ".join(shown) or "no HEARTH_ variable is set"))
    for name in environ:
        if name.startswith("HEARTH_") and name not in VARIABLES and not name.startswith(_DAEMON_PREFIXES):
            close = closest(name, VARIABLES)
            suggestion = f"; did you mean {close}?" if close else ""
            checks.append(
                Check(
                    "environment",
                    "warning",
                    f"{name} is not a variable that the client reads{suggestion}",
                    f"unset {name}",
                )
            )
    for name in _FILES:
        if path := environ.get(name):
            checks += _check_file(name, path)
    if environ.get("HEARTH_TOKEN") and environ.get("HEARTH_TOKEN_FILE"):
        detail = "HEARTH_TOKEN and HEARTH_TOKEN_FILE are both set: HEARTH_TOKEN is used"
        checks.append(Check("environment", "warning", detail, "unset one of them"))
    proxies = [name for name in _PROXIES if environ.get(name) or environ.get(name.upper())]
    if proxies and not loopback:
        detail = (
            f"{', '.join(proxies)} is set: gRPC connects through that proxy, which is slower and may refuse "
            "the connection"
        )
        checks.append(Check("environment", "warning", detail, "add the daemon's host to no_proxy"))
    return checks


def token_file(arguments: argparse.Namespace) -> list[Check]:
    """Checks the token file of the command line, if one is given."""
    return _check_file("--token-file", arguments.token_file) if arguments.token_file else []


def _check_file(name: str, path: str) -> list[Check]:
    try:
        with Path(path).open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        return [Check("environment", "failed", f"{name}: {path!r} cannot be read: {reason}", "use a readable file")]
    secret = name in (*_SECRET_FILES, "--token-file")
    if secret and mode & (stat.S_IRGRP | stat.S_IROTH | stat.S_IWGRP | stat.S_IWOTH):
        detail = f"{name}: other users of this host can read or write {path!r} (mode {stat.S_IMODE(mode):04o})"
        return [Check("environment", "warning", detail, f"chmod 600 {path}")]
    return []


def _requirements() -> dict[str, str]:
    requirements = dict(REQUIRED)
    try:
        lines = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        return requirements
    for line in lines:
        match = re.fullmatch(r"([A-Za-z0-9_.-]+)\s*([<>=!][^;]*)", line)
        if match is not None and match[1] in requirements:
            requirements[match[1]] = match[2].strip()
    return requirements


def _numbers(version: str) -> tuple[int, ...]:
    """Returns the numbers of a version, without zeros at the end, so that 1.0 equals 1."""
    match = re.match(r"[\d.]*", version)
    numbers = [int(part) for part in (match[0] if match else "").split(".") if part]
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)
