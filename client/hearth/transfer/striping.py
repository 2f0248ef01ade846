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
    from hearth.transfer.stripe_pool import Route
    from hearth.transfer.striped import StripedDownload, StripedUpload


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
    route = _open_stripes(connection, attachment, len(data))
    if route is None:
        return GrpcUpload(connection, number, data, attachment.session.limits.max_chunk_bytes, progress)
    from hearth.transfer.striped import StripedUpload

    return StripedUpload(connection, route, reply, number, data, progress)


def download(
    connection: Connection,
    attachment: Attachment,
    reply: Reply,
    number: int,
    into: memoryview,
    timeout: float | None = None,
    progress: Progress | None = None,
) -> GrpcDownload | StripedDownload:
    """Starts to receive the bytes of a transfer: over stripes if it is large and stripes are available, else over gRPC.

    Args:
        connection: Connection to the device.
        attachment: Attachment over which the command was sent.
        reply: Reply of the command, which names the transfer.
        number: Number of the transfer.
        into: Destination of the bytes.
        timeout: Seconds after which the transfer is cut short; None: never.
        progress: Receives the number of bytes that have arrived, and the total; None: not reported.
    """
    route = _open_stripes(connection, attachment, len(into))
    if route is None:
        return GrpcDownload(connection, number, into, timeout, progress)
    from hearth.transfer.striped import StripedDownload

    return StripedDownload(connection, route, reply, number, into, timeout, progress)


def _open_stripes(connection: Connection, attachment: Attachment, size: int) -> Route | None:
    """Returns stripes for `size` bytes; None: use gRPC."""
    limit = connection.transport.stripes
    count = plan.stripes(size, min(plan.MAX_STRIPES, cores()) if limit is None else limit)
    if not count:
        return None
    from hearth.transfer.stripe_pool import Route, Stripes  # imported only for large transfers, which few sessions make

    pool, generation = connection.part(Stripes), attachment.session.generation
    stripes = pool.open(generation, count)
    if not stripes:
        return None
    chunk = plan.stripe_chunk(size, len(stripes), min(stripe.max_chunk for stripe in stripes))
    return Route(pool, stripes, generation, chunk)
