"""Writes and reads whose bytes travel beside the batch, in chunks, each side paced by credits.

A transfer holds its place in its stream: it is one operation that stays at the head until its last chunk has been
given to the device.
"""

from __future__ import annotations

from hearth_proto.frames import Frame
from hearthd.device.downloads import Downloads
from hearthd.device.session import Session
from hearthd.device.uploads import Uploads


class Transfers(Uploads, Downloads):
    """The bulk side of a device process."""

    def aborted(self, session: Session, frame: Frame) -> None:
        """The client's side of a transfer broke."""
        download = session.downloads.get(frame.id)
        if download is not None:
            self.download_aborted(session, frame.id, download)
        else:
            self.upload_aborted(session, frame.id, frame.payload)
