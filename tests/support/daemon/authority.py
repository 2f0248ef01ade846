"""A certificate authority and the certificates that it issues."""

from __future__ import annotations

import datetime
import itertools
from pathlib import Path

import trustme

NOW = datetime.datetime.now(datetime.UTC)
LONG_AGO, YESTERDAY = NOW - datetime.timedelta(days=30), NOW - datetime.timedelta(days=1)


class Authority:
    """An authority, and the files that it has issued."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        self._ca = trustme.CA()
        self._count = itertools.count()
        self.pem = folder / "ca.pem"
        self._ca.cert_pem.write_to_path(self.pem)

    def issue(self, *names: str, expired: bool = False) -> tuple[Path, Path]:
        """Returns the paths of a certificate and its key."""
        dates = {"not_before": LONG_AGO, "not_after": YESTERDAY} if expired else {}
        issued = self._ca.issue_cert(*names, **dates)
        stem = f"{next(self._count)}-{names[0]}"
        certificate, key = self.folder / f"{stem}.pem", self.folder / f"{stem}.key"
        certificate.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        key.touch(mode=0o600)
        key.write_bytes(issued.private_key_pem.bytes())
        return certificate, key
