"""The keys that sign an audit log: a file with one key per line, newest last, which only its owner may read."""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import stat
from pathlib import Path
from typing import NamedTuple

from hearthd.shared import secret_file

_LINE = re.compile(r"hearth-audit-key-v1 ([0-9a-f]{8}) ([0-9a-f]{64})")
_HEADER = (
    "# Keys that sign the audit log of hearthd, the newest last. Keep a copy elsewhere: `hearthd audit verify --key`."
)
_SEAL = re.compile(rb',"mac":"([0-9a-f]{64})"\}$')


class KeyFileError(Exception):
    """A key file cannot be used. The text is one line for the operator."""


class AuditKey(NamedTuple):
    """A key that signs lines of the audit log."""

    id: str
    """The first eight hexadecimal digits of the hash of the secret."""
    secret: bytes

    def mac(self, text: bytes) -> str:
        """Returns the message authentication code of a text (HMAC-SHA256), in hexadecimal."""
        return hmac.new(self.secret, text, hashlib.sha256).hexdigest()

    def seal(self, text: bytes) -> bytes:
        """Returns a JSON object with its message authentication code added as the last member."""
        return text[:-1] + b',"mac":"' + self.mac(text).encode() + b'"}'

    def is_sealed(self, raw: bytes) -> bool:
        """Returns True if `raw` was made by `seal` with this key."""
        match = _SEAL.search(raw)
        if match is None:
            return False
        return hmac.compare_digest(self.mac(raw[: match.start()] + b"}"), match[1].decode())


class Keyring:
    """The keys of a file, oldest first."""

    def __init__(self, keys: list[AuditKey]) -> None:
        self._keys = keys

    @property
    def current(self) -> AuditKey:
        """The newest key, which signs new lines."""
        return self._keys[-1]

    def find(self, id_: str) -> AuditKey | None:
        """Returns the key with this id; None: it is not in the file."""
        return next((key for key in self._keys if key.id == id_), None)

    def age(self, id_: str) -> int:
        """Returns the index of a key in the order of age; -1: it is not in the file."""
        return next((number for number, key in enumerate(self._keys) if key.id == id_), -1)

    def __len__(self) -> int:
        return len(self._keys)


def load(path: str) -> Keyring:
    """Returns the keys of a file.

    Raises `KeyFileError` if there are none, or if other users may read or write the file.
    """
    try:
        mode = os.stat(path).st_mode  # noqa: PTH116
        text = Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise KeyFileError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if mode & (stat.S_IRWXO | stat.S_IWGRP):
        raise KeyFileError(f"users other than its owner may read or write {path}; chmod 600 {path}")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    matches = [_LINE.fullmatch(line) for line in lines]
    if not lines or not all(matches):
        raise KeyFileError(f"{path} contains no audit log keys; remove it, and the daemon creates a new key")
    return Keyring([AuditKey(match[1], bytes.fromhex(match[2])) for match in matches if match is not None])


def load_or_create(path: str) -> tuple[Keyring, bool]:
    """Returns the keys of a file, and True if the file did not exist and was created with a first key.

    Raises `KeyFileError`.
    """
    created = False
    if not os.path.lexists(path):
        try:
            created = secret_file.create(path, f"{_HEADER}\n".encode() + _format(_generate()))
        except OSError as error:
            raise KeyFileError(f"{path} cannot be created: {error.strerror or error}") from None
    return load(path), created


def rotate(path: str) -> AuditKey:
    """Adds a key, which signs from the daemon's next reload or start on.

    Earlier keys stay, to verify what they signed. Raises `KeyFileError`.
    """
    load(path)
    key = _generate()
    try:
        write_synced(path, os.O_APPEND, _format(key))
    except OSError as error:
        raise KeyFileError(f"{path} cannot be written: {error.strerror or error}") from None
    return key


def write_synced(path: str, flags: int, data: bytes) -> None:
    """Writes to a file that is opened with `flags`, and syncs it. Raises `OSError`."""
    handle = os.open(path, os.O_WRONLY | os.O_CLOEXEC | flags, 0o600)
    try:
        os.write(handle, data)
        os.fsync(handle)
    finally:
        os.close(handle)


def _generate() -> AuditKey:
    secret = secrets.token_bytes(32)
    return AuditKey(hashlib.sha256(secret).hexdigest()[:8], secret)


def _format(key: AuditKey) -> bytes:
    return f"hearth-audit-key-v1 {key.id} {key.secret.hex()}\n".encode()
