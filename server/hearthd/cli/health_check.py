"""`hearthd health`: queries the health of the daemon of a configuration, for example as a container's health check.

It queries `grpc.health.v1`, which requires no token, over the Unix socket, so it also works if nothing listens on TCP.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from hearthd.cli import flags
from hearthd.cli.failure import RUNTIME_ERROR, USAGE_ERROR, fail
from hearthd.cli.parser import add_command, number_type

if TYPE_CHECKING:
    import grpc

    from hearthd.front.addresses import Address
    from hearthd.front.config.loader import Config

_SERVING = "SERVING"

_CONNECT_ERRORS = (
    ("No such file", "there is no such socket. Fix: start hearthd, or name its configuration with --config"),
    ("refused", "no daemon listens there. Fix: start hearthd, or name its configuration with --config"),
    ("denied", "this user may not use the socket. Fix: run the check as the daemon's user"),
)
"""Parts of gRPC's errors for an unreachable address, and the text that the command prints for each."""


def add_to(commands: Any) -> None:
    """Adds the command and its arguments."""
    parser = add_command(
        commands,
        run,
        "health",
        "check whether the daemon is ready; exit status 1 if not",
        "Checks whether the daemon of a configuration, or of the socket --unix, is ready. Needs no token.",
        statuses={0: "the daemon is ready", 1: "it is not ready, or does not answer"},
        examples=("hearthd health", "hearthd health --live --timeout 1", "hearthd health --service device/0"),
    )
    flags.add_config(parser)
    parser.add_argument("--unix", metavar="PATH", help="path of the daemon's Unix socket")
    parser.add_argument(
        "--service", default="", metavar="NAME", help='service to check, such as "device/0"; default: "", the node'
    )
    parser.add_argument(
        "--live", action="store_true", help="check liveness: any answer succeeds; default: check readiness"
    )
    parser.add_argument(
        "--timeout",
        type=number_type(float, "seconds", 0.01, 3600),
        default=3.0,
        metavar="SECONDS",
        help="seconds to wait for the answer (%(default)g)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Prints the answer. Raises `SystemExit` if the daemon is not ready, or cannot be queried."""
    config, _ = flags.load(arguments.config, {("listen", "unix"): arguments.unix})
    print(check(config, arguments.service, arguments.timeout, live=arguments.live))
    return 0


def check(config: Config, service: str, timeout: float, *, live: bool) -> str:
    """Returns the answer about `service`, "SERVING".

    With `live`, any answer is returned, because it shows that the daemon's event loop runs. Raises `SystemExit` if the
    daemon's state is another one, or if the configuration has no listener that can be queried from this host.
    """
    import grpc
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    channel, target = _channel(config)
    with channel:
        stub = health_pb2_grpc.HealthStub(channel)
        try:
            answer = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=timeout)
        except grpc.RpcError as error:
            _explain(error, target, service, timeout)
    status = str(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))
    if status != _SERVING and not live:
        fail(f"{service or 'the node'} is {status}: it is starting or draining, or no device serves", RUNTIME_ERROR)
    return status


def _channel(config: Config) -> tuple[grpc.Channel, str]:
    import grpc

    from hearthd.front.addresses import parse_address

    # Uses neither a proxy of the environment nor a connection of another check.
    options = (("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1))
    if config.unix_path:
        target = f"unix:{config.unix_path}"
        return grpc.insecure_channel(target, options), target
    address = parse_address(config.listen.grpc) if config.listen.grpc else None
    if address is None or not address.port or config.tls.require_client_certificate:
        fail(
            "there is no address to check: listen.unix is off, and listen.grpc is off, has no fixed port, or requires "
            "a client's certificate; set listen.unix, or query /healthz and /readyz of listen.http",
            USAGE_ERROR,
        )
    target = str(_reachable(address))
    if not config.tls.certificate:
        return grpc.insecure_channel(target, options), target
    try:
        pem = Path(config.tls.certificate).read_bytes()
        name = _name(pem)
    except (OSError, ValueError) as error:
        fail(f"tls.certificate: {config.tls.certificate} cannot be used: {error}", USAGE_ERROR)
    # Exactly this certificate is trusted, whatever its issuer and the names that it contains.
    credentials = grpc.ssl_channel_credentials(root_certificates=pem)
    return grpc.secure_channel(target, credentials, (*options, ("grpc.ssl_target_name_override", name))), target


def _reachable(address: Address) -> Address:
    """Returns the address at which this host reaches a listener on all interfaces; other addresses unchanged."""
    if not address.wildcard:
        return address
    return address._replace(host="::1" if ":" in address.host else "127.0.0.1")


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


def _explain(error: Exception, target: str, service: str, timeout: float) -> NoReturn:
    import grpc

    code, details = error.code(), error.details()  # type: ignore[attr-defined]
    if code == grpc.StatusCode.NOT_FOUND:
        fail(f"{target} knows no service {service!r}; there are '', 'device/0', ...", RUNTIME_ERROR)
    if code == grpc.StatusCode.DEADLINE_EXCEEDED:
        fail(f"{target} did not answer within {timeout:g} s", RUNTIME_ERROR)
    reason = details or code.name
    if code == grpc.StatusCode.UNAVAILABLE:
        reason = next((text for pattern, text in _CONNECT_ERRORS if pattern in reason), reason)
    fail(f"{target} cannot be queried: {reason}", RUNTIME_ERROR)
