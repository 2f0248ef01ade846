"""The decoders of data from the network, as functions of bytes: fuzzed in this process, without a daemon.

`python -m tests.fuzz.decoders NAME --seconds 60` lets atheris (`pip install atheris`) search for inputs that reach new
code, starting with `corpus/NAME/`; an input that fails is written to `findings/NAME/`, and `test_decoders.py` replays
it from then on. Without atheris, random changes of the corpus are tried.

A decoder may raise only the errors that it documents, and must end soon.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

from google.protobuf.message import DecodeError

from hearth_proto import calls, chunks, frames, launches, reasons, stripes
from hearth_proto.v1 import commands_pb2, device_pb2, node_pb2

HERE = Path(__file__).resolve().parent
CORPUS, FINDINGS = HERE / "corpus", HERE / "findings"
SOON_S = 1.0
"""Maximum processor time of one input in seconds: thousands of times the usual time."""
LARGEST = 1 << 20
"""Maximum size of an input in bytes."""


def _frames(data: bytes) -> None:
    """A stream in one piece gives the same frames as in several pieces, and the frames encode to the same bytes."""
    whole, pieces = frames.FrameReader(1 << 16), frames.FrameReader(1 << 16)
    at_once = whole.feed(data)
    assert at_once == [frame for at in range(0, len(data), 7) for frame in pieces.feed(data[at : at + 7])]
    said = b"".join(frames.encode(f.kind, f.payload, channel=f.channel, id=f.id, flags=f.flags) for f in at_once)
    assert data.startswith(said) and whole.pending == pieces.pending == len(data) - len(said)


def _records(data: bytes) -> None:
    list(launches.unpack(data))


def _head(data: bytes) -> None:
    calls.unpack_head(data)


def _stripe(data: bytes) -> None:
    stripes.read_head(data[: stripes.HEADER.size].ljust(stripes.HEADER.size, b"\0"), 1 << 20, frozenset(range(256)))


def _upload(data: bytes) -> None:
    assert len(chunks.upload_data(data)) <= len(data)


def _download(data: bytes) -> None:
    assert len(chunks.download_response(data)[1]) <= len(data)


def _refusal(data: bytes) -> None:
    reasons.from_text(data.decode("latin-1"))


def _messages(data: bytes) -> None:
    for kind in (commands_pb2.Batch, device_pb2.ExecuteRequest, node_pb2.OpenSessionRequest):
        kind.FromString(data)


DECODERS: dict[str, tuple[Callable[[bytes], None], tuple[type[Exception], ...]]] = {
    "frames": (_frames, (frames.FrameError,)),
    "records": (_records, (launches.RecordError,)),
    "head": (_head, (frames.FrameError,)),
    "stripe": (_stripe, (frames.FrameError,)),
    "upload": (_upload, (ValueError,)),
    "download": (_download, (ValueError,)),
    "refusal": (_refusal, (ValueError,)),
    "messages": (_messages, (DecodeError,)),
}
"""Each decoder with the errors that it documents."""


def attempt(name: str, data: bytes) -> None:
    """Runs a decoder; raises an error if the decoder has a defect."""
    decode, documented = DECODERS[name]
    began = time.process_time()
    with contextlib.suppress(documented):
        decode(data)
    took = time.process_time() - began
    assert took < SOON_S, f"{len(data)} bytes took {took:.1f} s of processor time"


def inputs(name: str) -> list[Path]:
    """Returns the files of the corpus and of the findings."""
    return sorted(path for folder in (CORPUS, FINDINGS) for path in (folder / name).glob("*"))


def changed(rng: random.Random, seeds: list[bytes]) -> bytes:
    """Returns one of `seeds` with a few changes: flipped bits, cuts, repeated pieces, long runs of a byte."""
    data = bytearray(rng.choice(seeds))
    for _ in range(rng.randrange(1, 5)):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(5):
            case 0 if data:
                data[at % len(data)] ^= 1 << rng.randrange(8)
            case 1:
                data[at:at] = rng.randbytes(rng.randrange(9))
            case 2:
                del data[at : at + rng.randrange(9)]
            case 3:
                data[at:at] = data[at : at + rng.randrange(64)]
            case _:
                data[at:at] = bytes((rng.choice((0, 0x7F, 0x80, 0xFF)),)) * rng.choice((1, 8, 300, 1 << 18))
    return bytes(data[:LARGEST])


def search(name: str, seconds: float, seed: int) -> int:
    """Tries random changes for `seconds`; returns their number. Inputs that fail are saved in `findings/`."""
    rng = random.Random(seed)
    seeds = [path.read_bytes() for path in inputs(name)] or [b""]
    deadline, tried = time.monotonic() + seconds, 0
    while time.monotonic() < deadline:
        data, tried = changed(rng, seeds), tried + 1
        try:
            attempt(name, data)
        except Exception:
            found = FINDINGS / name / hashlib.sha256(data).hexdigest()[:16]
            found.parent.mkdir(parents=True, exist_ok=True)
            found.write_bytes(data)
            raise
    return tried


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.decoders", description=__doc__)
    parser.add_argument("name", choices=DECODERS)
    parser.add_argument("--seconds", type=int, default=60)
    chosen = parser.parse_args()
    (FINDINGS / chosen.name).mkdir(parents=True, exist_ok=True)
    (CORPUS / chosen.name).mkdir(parents=True, exist_ok=True)
    try:
        import atheris
    except ImportError:
        tried = search(chosen.name, chosen.seconds, int(time.time()))
        print(f"atheris is not installed; {tried} random changes, no defect")
        return
    atheris.instrument_all()
    options = [
        f"-max_total_time={chosen.seconds}",
        f"-max_len={LARGEST}",
        f"-artifact_prefix={FINDINGS / chosen.name}/",
    ]
    atheris.Setup([sys.argv[0], *options, str(CORPUS / chosen.name)], lambda data: attempt(chosen.name, data))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
