"""The fake daemon on a Unix socket: it offers lanes, resumes sessions, and cuts a lane after a number of bytes."""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import grpc

from hearth_proto import frames, reasons
from hearth_proto.frames import FrameReader, Kind
from hearth_proto.v1 import device_pb2, device_pb2_grpc, node_pb2_grpc
from tests.support.client.fake_daemon import FakeDaemon, Response, _abort, _Broken


@contextlib.contextmanager
def serving() -> Iterator[LaneDaemon]:
    """Yields a fake daemon with a separate socket, and stops it at the end of the block."""
    with TemporaryDirectory() as directory:
        daemon = LaneDaemon(Path(directory))
        try:
            yield daemon
        finally:
            daemon.stop()


class LaneDaemon(FakeDaemon):
    """Front and device process in one: each request of a client is run once, and its response is repeated if the client
    has not received it."""

    def __init__(self, directory: Path, **options: int) -> None:
        super().__init__(**options)
        self.path = str(directory / "lanes.sock")
        self.socket = str(directory / "hearth.sock")
        self.server.stop(None)  # a port added to a server that has started is never served, hence a new server
        self.server = grpc.server(ThreadPoolExecutor(32))
        node_pb2_grpc.add_NodeServiceServicer_to_server(self, self.server)
        device_pb2_grpc.add_DeviceServiceServicer_to_server(self, self.server)
        self.server.add_insecure_port(f"unix:{self.socket}")
        self.offers = True
        self.silent = False  # accepts tickets, and sends nothing on the lane
        self.cuts: list[tuple[int, int]] = []  # (bytes received, bytes sent) after which the next lane is cut
        self.lanes: list[_FakeLane] = []
        self.tickets: set[bytes] = set()
        self.last = 0
        self.kept: list[Response] = []
        self.first_kept = 0
        self.told: list[int] = []  # acknowledgements of received responses that arrived over lanes
        self.over_grpc = 0  # number of batches received over gRPC
        self.lost: reasons.Refusal | None = None
        self.working = threading.RLock()
        self.sink: Any = None
        self.streams = 0
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(self.path)
        self.listener.listen(16)
        self.server.start()
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def target(self) -> str:
        return f"unix:{self.socket}"

    @property
    def lane(self) -> _FakeLane | None:
        with self.working:
            return self.lanes[-1] if self.lanes and not self.lanes[-1].over else None

    def stop(self) -> None:
        super().stop()
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for lane in self.lanes:
            lane.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            lane = _FakeLane(self, connection, self.cuts.pop(0) if self.cuts else None)
            threading.Thread(target=lane.run, daemon=True).start()

    def take(self, request: Any) -> bool:
        """Runs one request, unless it has run already; returns False if the lane must be closed."""
        with self.working:
            if request.WhichOneof("kind") == "received":
                self.told.append(request.received.responses)
                return True
            self.batches.append(request)
            if request.batch.seq > self.last:
                assert request.batch.seq == self.last + 1
                self.last += 1
                try:
                    for command in request.batch.commands:
                        for response in self._execute(command):
                            self.say(response)
                except _Broken as broken:
                    self.lost = broken.refusal
                    self.sink.put(None)
                    return False
            self.answer(Response(ack=device_pb2.Ack(seq=request.batch.seq)))
            return True

    def say(self, response: Response) -> None:
        self.kept.append(response)
        if response.event.WhichOneof("kind") != "device_lost":
            self.answer(response)

    def answer(self, response: Response) -> None:
        if self.lane is not None:
            self.lane.answer(response)
        elif self.sink is not None and not self.lanes:
            self.sink.put(response)

    def Execute(self, requests: Iterator[Any], context: Any) -> Iterator[Response]:
        attach = next(requests).attach
        self.attaches += 1
        with self.working:
            self.streams += 1
            own_stream = self.streams
            for lane in self.lanes:
                lane.close()
            if self.sink is not None:
                self.sink.put(None)
            self.sink = sink = queue.SimpleQueue()
            context.add_callback(lambda: sink.put(None))
            self.lanes.clear()
            resumed = attach.resume and attach.generation == self.generation
            if not attach.resume:
                self.last, self.kept, self.lost = 0, [], None
            answer = device_pb2.Attached(
                generation=attach.generation if attach.resume else self.generation, last_seq=self.last,
                max_batch_bytes=self.limits["max_batch_bytes"], resumed=attach.resume,
                max_batches_in_flight=self.limits["max_batches_in_flight"],
            )  # fmt: skip
            if self.offers and self.lost is None and (resumed or not attach.resume):
                answer.lane.path, answer.lane.ticket = self.path, os.urandom(16)
                self.tickets.add(answer.lane.ticket)
            kept = self.kept[attach.received :] if attach.resume else []
        yield Response(attached=answer)
        yield from kept
        if self.lost is not None:
            _abort(context, self.lost)
        if self.last:
            yield Response(ack=device_pb2.Ack(seq=self.last))
        threading.Thread(target=self._read, args=(requests, own_stream), daemon=True).start()
        while (response := sink.get()) is not None:
            yield response
        if self.lost is not None:
            _abort(context, self.lost)

    def _read(self, requests: Iterator[Any], mine: int) -> None:
        try:
            for request in requests:
                with self.working:
                    if self.streams != mine:
                        return
                    assert self.lane is None, "sent over the stream although there is a lane"
                    self.over_grpc += request.WhichOneof("kind") == "batch"
                    self.take(request)
        except Exception:  # the stream was cancelled
            return


class _FakeLane:
    def __init__(self, daemon: LaneDaemon, connection: socket.socket, cut: tuple[int, int] | None) -> None:
        self.daemon = daemon
        self.connection = connection
        self.into, self.out = cut or (1 << 60, 1 << 60)
        self.over = False

    def run(self) -> None:
        reader = FrameReader()
        live = False
        try:
            while data := self.connection.recv(min(1 << 16, self.into) if live else 20 + 16):
                if live:
                    self.into -= len(data)
                for frame in reader.feed(data):
                    if not live:
                        live = True
                        if not self.open(frame):
                            return
                        continue
                    assert frame.kind == Kind.BATCH
                    request = device_pb2.ExecuteRequest.FromString(frame.payload)
                    assert frame.id == request.batch.seq
                    self.daemon.gate.wait()
                    with self.daemon.working:
                        if self.over or not self.daemon.take(request):
                            return
                if live and not self.into:
                    return
        except OSError:
            return
        finally:
            self.close()
            self.connection.close()

    def open(self, frame: frames.Frame) -> bool:
        with self.daemon.working:
            if frame.kind != Kind.TICKET or frame.payload not in self.daemon.tickets:
                return False
            self.daemon.tickets.discard(frame.payload)
            if self.daemon.silent:
                return True
            self.connection.sendall(frames.encode(Kind.LIVE))
            self.daemon.lanes.append(self)
            return True

    def answer(self, response: Response) -> None:
        if response.HasField("ack"):
            data = frames.encode(Kind.ACK, id=response.ack.seq)
        else:
            data = frames.encode(Kind.RESPONSE, response.SerializeToString())
        sent = data[: self.out]
        self.out -= len(sent)
        try:
            self.connection.sendall(sent)
        except OSError:
            self.close()
        if len(sent) < len(data):
            self.close()

    def close(self) -> None:
        self.over = True
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)
