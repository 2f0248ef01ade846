"""Choice between stripes, for large transfers if stripes are available, and the Upload and Download streams of gRPC."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hearth.transfer import plan
from hearth.transfer.grpc_stream import GrpcDownload, GrpcUpload
from hearth_proto.cores import cores

if TYPE_CHECKING:
    from hearth.progress import Progress
    from hearth.session.attachment import Attachment
    from hearth.session.connection import Connection
    from hearth.session.reply import Reply
    from hearth.transfer.stripe_pool import Stripes
    from hearth.transfer.striped_download import StripedDownload
    from hearth.transfer.striped_upload import StripedUpload
    from hearth.transport.stripe import Stripe


def upload(
    connection: Connection,
    attachment: Attachment,
    reply: Reply,
    number: int,
    data: memoryview,
    progress: Progress | None = None,
) -> GrpcUpload | StripedUpload:
    """Starts to send the bytes of a transfer: over stripes if it is large and stripes are available, else over gRPC.

    Args:
        connection: Connection to the device.
        attachment: Attachment over which the command was sent.
        reply: Reply of the command, which names the transfer.
        number: Number of the transfer.
        data: Bytes of the transfer, which must not change until the result is known.
        progress: Receives the number of bytes sent, and the total; None: not reported.
    """
    found = _lines(connection, attachment, len(data))
    if found is None:
        return GrpcUpload(connection, number, data, attachment.session.limits.max_chunk_bytes, progress)
    from hearth.transfer.striped_upload import StripedUpload

    stripes, lines, chunk = found
    generation = attachment.session.generation
    return StripedUpload(connection, stripes, reply, number, data, lines, chunk, generation, progress)


def download(
    connection: Connection,
    attachment: Attachment,
    reply: Reply,
    number: int,
    into: memoryview,
    timeout: float | None = None,
) -> GrpcDownload | StripedDownload:
    """Starts to receive the bytes of a transfer: over stripes if it is large and stripes are available, else over gRPC.

    Args:
        connection: Connection to the device.
        attachment: Attachment over which the command was sent.
        reply: Reply of the command, which names the transfer.
        number: Number of the transfer.
        into: Destination of the bytes.
        timeout: Seconds after which the transfer is cut short; None: never.
    """
    found = _lines(connection, attachment, len(into))
    if found is None:
        return GrpcDownload(connection, number, timeout)
    from hearth.transfer.striped_download import StripedDownload

    stripes, lines, chunk = found
    generation = attachment.session.generation
    return StripedDownload(connection, stripes, reply, number, into, lines, chunk, generation, timeout)


def _lines(connection: Connection, attachment: Attachment, size: int) -> tuple[Stripes, list[Stripe], int] | None:
    """Returns stripes for `size` bytes and the size of the chunks, in bytes; None: use gRPC."""
    most = connection.transport.stripes
    count = plan.stripes(size, min(plan.MOST_STRIPES, cores()) if most is None else most)
    if not count:
        return None
    from hearth.transfer.stripe_pool import Stripes  # imported only for large transfers, which few sessions make

    stripes = connection.part(Stripes)
    lines = stripes.open(attachment.session.generation, count)
    if not lines:
        return None
    return stripes, lines, plan.stripe_chunk(size, len(lines), min(each.max_chunk for each in lines))
