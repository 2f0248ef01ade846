"""Files with several traces: documents of Chrome's Trace Event Format, merged on one clock."""

from __future__ import annotations

import itertools
import json
import os
import secrets
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

Document = Mapping[str, Any]


def merge(documents: Iterable[Document]) -> dict[str, Any]:
    """Merges documents into one that has the events of all.

    Each document's `otherData` gives the Unix time of its time 0; in the result, time 0 is the earliest of them. Tracks
    whose process and track have the same names are merged.

    Args:
        documents: The documents, in Chrome's Trace Event Format.

    Returns:
        The merged document.
    """
    parts = list(documents)
    epochs = [_epoch(part) for part in parts]
    start = min((epoch for epoch in epochs if epoch), default=0)
    tracks = _Tracks()
    arrows = itertools.count(1)
    events: list[dict[str, Any]] = []
    for part, epoch in zip(parts, epochs, strict=True):
        shift = (epoch - start) / 1e3 if epoch else 0.0
        ids: dict[Any, int] = {}
        entries = part.get("traceEvents", ())
        tracks.begin(entries)
        for entry in entries:
            event = dict(entry)
            event["pid"], event["tid"], is_redundant = tracks.of(entry)
            if entry.get("ph") == "M":
                if is_redundant:
                    continue
                if entry.get("name") == "process_sort_index":
                    event["args"] = {"sort_index": event["pid"]}
            else:
                event["ts"] = entry.get("ts", 0.0) + shift
                if shift and "args" in entry:
                    event["args"] = {
                        name: value + shift if name.endswith("_us") else value for name, value in entry["args"].items()
                    }
            if "id" in entry:
                if entry["id"] not in ids:
                    ids[entry["id"]] = next(arrows)
                event["id"] = ids[entry["id"]]
            events.append(event)
    metadata = [part.get("otherData", {}) for part in parts]
    return {
        "traceEvents": events,
        "displayTimeUnit": "ns",
        "otherData": {
            "epoch_unix_ns": str(start),
            "dropped": sum(int(entry.get("dropped", 0)) for entry in metadata),
            "lost": sum(int(entry.get("lost", 0)) for entry in metadata),
            "devices": [
                device
                for entry in metadata
                for device in entry.get("devices", [entry["device"]] if "device" in entry else [])
            ],
        },
    }


class _Tracks:
    """Numbers of processes and tracks: equal names get equal numbers, across documents."""

    def __init__(self) -> None:
        self._processes: dict[Any, int] = {}
        self._tracks: dict[Any, int] = {}
        self._named: set[Any] = set()
        self._titles: dict[Any, str] = {}
        self._document = 0

    def begin(self, entries: Iterable[Mapping[str, Any]]) -> None:
        """Starts the next document.

        Args:
            entries: The events of the document, from which the names are read.
        """
        self._document += 1
        self._titles = {}
        for entry in entries:
            if entry.get("ph") == "M" and "name" in entry.get("args", {}):
                thread = (entry.get("tid"),) if entry.get("name") == "thread_name" else ()
                self._titles[entry.get("pid"), *thread] = entry["args"]["name"]

    def of(self, entry: Mapping[str, Any]) -> tuple[int, int, bool]:
        """Returns the numbers of an entry's process and track, and True if the entry is redundant metadata.

        An earlier entry has then given the same track metadata of the same name.

        Args:
            entry: The event.
        """
        old_key = (entry.get("pid"), entry.get("tid"))
        process = self._titles.get(old_key[:1], (self._document, old_key[0]))
        number = self._processes.setdefault(process, len(self._processes) + 1)
        title = self._titles.get(old_key)
        if title is None and not old_key[1]:
            track = 0  # events that belong to the process as a whole
        else:
            track_count = sum(track_key[0] == number for track_key in self._tracks)
            track = self._tracks.setdefault((number, title or (self._document, old_key[1])), track_count + 1)
        key = (entry.get("name"), number, track)
        is_redundant = entry.get("ph") == "M" and key in self._named
        if entry.get("ph") == "M":
            self._named.add(key)
        return number, track, is_redundant


def write(path: str | os.PathLike[str], document: Document) -> None:
    """Writes the whole file, or leaves it unchanged.

    Args:
        path: The file, which is replaced.
        document: The document to write as JSON.

    Raises:
        OSError: The file cannot be written.
    """
    target = Path(path)
    draft = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    try:
        with draft.open("x", encoding="utf-8") as file:
            file.write(json.dumps(document, separators=(",", ":")))
        draft.replace(target)
    finally:
        with suppress(OSError):
            draft.unlink()


def _epoch(document: Document) -> int:
    try:
        return int(document.get("otherData", {}).get("epoch_unix_ns", 0))
    except (TypeError, ValueError):
        return 0
