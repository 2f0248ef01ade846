"""`hearthd make-certificate`: creates a private authority, and a certificate of the daemon that it signs."""

from __future__ import annotations

import argparse
import datetime
import ipaddress
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hearthd.cli.failure import RUNTIME_ERROR, USAGE_ERROR, fail
from hearthd.cli.parser import add_command, number_type

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509 import Certificate, CertificateBuilder, GeneralName

AUTHORITY, CERTIFICATE, KEY = "ca.pem", "tls.pem", "tls.key"
"""Names of the files that are written."""
_CLOCK_SKEW = datetime.timedelta(hours=1)
"""Time by which the start of validity precedes the present time, for hosts whose clocks are behind."""
_MAX_DAYS = 3650


def add_to(commands: Any) -> None:
    """Adds the command and its arguments."""
    parser = add_command(
        commands,
        run,
        "make-certificate",
        "make a private authority and a certificate",
        f"Makes a private authority and a certificate. Writes {AUTHORITY} for clients, and {CERTIFICATE} and {KEY} for "
        "[tls] of the daemon. The key of the authority is not kept: a new certificate has a new authority.",
        statuses={1: "a file exists already, or cannot be written"},
        examples=("hearthd make-certificate gpu-box.example.com 10.1.0.17 --directory /etc/hearth",),
    )
    parser.add_argument("names", nargs="+", metavar="NAME", help="host names and IP addresses of the daemon")
    parser.add_argument(
        "--directory", type=Path, default=Path(), metavar="DIR", help="directory of the files (%(default)s)"
    )
    parser.add_argument(
        "--days",
        type=number_type(int, "days", 1, _MAX_DAYS),
        default=365,
        metavar="N",
        help="number of days for which the certificate is valid (%(default)d)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Creates the certificate, and prints the settings of daemon and clients. Raises `SystemExit` on failure."""
    names: list[str] = arguments.names
    try:
        make(names, arguments.directory, arguments.days)
    except OSError as error:
        fail(f"{error.filename}: {error.strerror}. Fix: name another --directory", RUNTIME_ERROR)
    except ValueError as error:
        fail(f"{error}. Fix: pass names such as gpu-box.example.com or 10.1.0.17", USAGE_ERROR)
    folder = arguments.directory.absolute()
    print(f'# For the daemon:\n[tls]\ncertificate = "{folder / CERTIFICATE}"\nkey = "{folder / KEY}"')
    print(f"# For clients, which need a copy of {folder / AUTHORITY}:")
    print(f"#   HEARTH_CA={AUTHORITY} HEARTH_TARGET=https://{names[0]}:7421")
    return 0


def make(names: Sequence[str], folder: Path, days: int) -> None:
    """Writes `AUTHORITY`, `CERTIFICATE` and `KEY` (mode 0600) into `folder`. The authority's key is not kept.

    Args:
        names: Host names and IP addresses at which clients reach the daemon.
        folder: Directory of the files; created if it does not exist.
        days: Number of days for which authority and certificate are valid.

    Raises:
        SystemExit: One of the files exists. No file is written.
        OSError: A file cannot be written.
        ValueError: A name is neither a host name nor an IP address.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID

    existing = [str(folder / name) for name in (AUTHORITY, CERTIFICATE, KEY) if (folder / name).exists()]
    if existing:
        fail(f"{', '.join(existing)} exists already. Fix: name another --directory", RUNTIME_ERROR)
    authority_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    authority = (
        _builder(f"Hearth authority of {names[0]}", authority_key, days)
        .issuer_name(_name(f"Hearth authority of {names[0]}"))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(authority=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    issuer = authority.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    certificate = (
        _builder(names[0], key, days)
        .issuer_name(authority.subject)
        .add_extension(x509.SubjectAlternativeName([_host(name) for name in names]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(authority=False), critical=True)
        .add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False
        )
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(issuer), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / KEY, private, 0o600)
    _write(folder / CERTIFICATE, _pem(certificate) + _pem(authority), 0o644)
    _write(folder / AUTHORITY, _pem(authority), 0o644)


def _name(common_name: str) -> Any:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name[:64])])


def _builder(subject: str, key: ec.EllipticCurvePrivateKey, days: int) -> CertificateBuilder:
    from cryptography import x509

    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(_name(subject))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _usage(*, authority: bool) -> Any:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not authority, key_cert_sign=authority, crl_sign=authority, content_commitment=False,
        key_encipherment=False, data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip


def _host(name: str) -> GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        pass
    if not name or not name.isascii() or any(character.isspace() or character in "/:" for character in name):
        raise ValueError(f"{name!r} is neither a host name nor an IP address")
    return x509.DNSName(name)


def _pem(certificate: Certificate) -> bytes:
    from cryptography.hazmat.primitives import serialization

    return certificate.public_bytes(serialization.Encoding.PEM)


def _write(path: Path, content: bytes, mode: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
