"""`hearthd health`: queries the health of the daemon of a configuration, for example as a container's health check.

It queries `grpc.health.v1`, which requires no token, over the Unix socket, so it also works if nothing listens on TCP.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from hearthd.cli.failure import RUNTIME_ERROR, USAGE_ERROR, fail
from hearthd.front.addresses import Address, parse_address

if TYPE_CHECKING:
    import grpc

    from hearthd.front.config.loader import Config

_SERVING = "SERVING"

_UNREACHABLE = (
    ("No such file", "there is no such socket. Fix: start hearthd, or name its configuration with --config"),
    ("refused", "no daemon listens there. Fix: start hearthd, or name its configuration with --config"),
    ("denied", "this user may not use the socket. Fix: run the check as the daemon's user"),
)
"""What gRPC says of an address that cannot be reached, and what is said of it here."""


def add_to(app: typer.Typer) -> None:
    """Adds the command `hearthd health` to the typer application."""

    @app.command()
    def health(
        path: Annotated[Path | None, typer.Option("--config", "-c", help="TOML file.", show_default=False)] = None,
        unix: Annotated[str | None, typer.Option(help="Path of the daemon's Unix socket.", show_default=False)] = None,
        service: Annotated[str, typer.Option(help='Service to check: the node (""), or e.g. "device/0".')] = "",
        live: Annotated[
            bool, typer.Option("--live", help="Check liveness: any answer succeeds. Default: check readiness.")
        ] = False,
        timeout: Annotated[float, typer.Option(help="Seconds to wait for the answer.", min=0.01)] = 3.0,
    ) -> None:
        """Ask whether the daemon is ready; exit status 1 if not.

        The configuration, or --unix, names the daemon.
        """
        from hearthd.front.config.loader import ConfigError, load

        try:
            config, _ = load(path, flags={("listen", "unix"): unix})
            print(check(config, service, timeout, live=live))
        except Unhealthy as error:
            fail(str(error), RUNTIME_ERROR)
        except (NothingToAsk, ConfigError) as error:
            fail(str(error), USAGE_ERROR)


class Unhealthy(Exception):
    """The state of the daemon is not the requested one; the exception's text is one line with the reason."""


class NothingToAsk(Exception):
    """The configuration has no listener that can be queried from this host.

    The exception's text is one line with advice.
    """


def check(config: Config, service: str, timeout: float, *, live: bool) -> str:
    """Returns the answer about `service`, "SERVING".

    With `live`, any answer is returned, because it shows that the daemon's event loop runs. Raises `Unhealthy` and
    `NothingToAsk`.
    """
    import grpc
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    channel, where = _channel(config)
    with channel:
        stub = health_pb2_grpc.HealthStub(channel)
        try:
            answer = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=timeout)
        except grpc.RpcError as error:
            _explain(error, where, service, timeout)
    status = str(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))
    if status != _SERVING and not live:
        raise Unhealthy(f"{service or 'the node'} is {status}: it is starting or draining, or no device serves")
    return status


def _channel(config: Config) -> tuple[grpc.Channel, str]:
    import grpc

    # Uses neither a proxy of the environment nor a connection of another check.
    options = (("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1))
    if config.unix_path:
        where = f"unix:{config.unix_path}"
        return grpc.insecure_channel(where, options), where
    address = parse_address(config.listen.grpc) if config.listen.grpc else None
    if address is None or not address.port or config.tls.require_client_certificate:
        raise NothingToAsk(
            "there is no address to check: listen.unix is off, and listen.grpc is off, has no fixed port, or asks "
            "for a "
            "client's certificate; set listen.unix, or ask listen.http for /healthz and /readyz"
        )
    where = str(_reached(address))
    if not config.tls.certificate:
        return grpc.insecure_channel(where, options), where
    try:
        pem = Path(config.tls.certificate).read_bytes()
        name = _name(pem)
    except (OSError, ValueError) as error:
        raise NothingToAsk(f"tls.certificate: {config.tls.certificate} cannot be used: {error}") from None
    # Exactly this certificate is trusted, whatever its issuer and the names that it contains.
    credentials = grpc.ssl_channel_credentials(root_certificates=pem)
    return grpc.secure_channel(where, credentials, (*options, ("grpc.ssl_target_name_override", name))), where


def _reached(address: Address) -> Address:
    """Returns the address under which this host reaches a listener on all interfaces.

    Other addresses are returned unchanged.
    """
    if not address.wildcard:
        return address
    return Address("::1" if ":" in address.host else "127.0.0.1", address.port)


def _name(pem: bytes) -> str:
    """Returns a host name or address for which the certificate is valid. Raises ValueError if it has none."""
    from cryptography import x509

    certificate = x509.load_pem_x509_certificate(pem)
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        names = None
    for name in names or ():
        if isinstance(name, x509.DNSName):
            return name.value.replace("*", "health", 1)
        if isinstance(name, x509.IPAddress):
            return str(name.value)
    raise ValueError("it names no host (subjectAltName)")


def _explain(error: Exception, where: str, service: str, timeout: float) -> NoReturn:
    import grpc

    code, details = error.code(), error.details()  # type: ignore[attr-defined]
    if code == grpc.StatusCode.NOT_FOUND:
        raise Unhealthy(f"{where} knows no service {service!r}; there are '', 'device/0', ...") from None
    if code == grpc.StatusCode.DEADLINE_EXCEEDED:
        raise Unhealthy(f"{where} did not answer within {timeout:g} s") from None
    reason = details or code.name
    if code == grpc.StatusCode.UNAVAILABLE:
        reason = next((said for part, said in _UNREACHABLE if part in reason), reason)
    raise Unhealthy(f"{where} cannot be asked: {reason}") from None
