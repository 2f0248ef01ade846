"""The code of `hearth run` and its headers, which are sent along because the daemon sees none of this machine's files.

Files that a source includes are looked up here, next to the including file and in the folders of ``-I``, as a compiler
does, and are sent with the source. Files that are not found here are left to the compiler, which has its own headers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from hearth.cli.format.complaint import invalid_argument

_INCLUDE = re.compile(r"""^[ \t]*#[ \t]*include[ \t]*(?:"([^"\n]+)"|<([^>\n]+)>)""", re.MULTILINE)
MAX_HEADERS = 1000
MAX_BYTES = 64 << 20
BINARY = (".cubin", ".fatbin", ".ptx")


def read_code(path: str) -> bytes:
    """Returns the contents of the file. Raises `ArgumentError`."""
    data = _read(path)
    if not data.strip():
        raise invalid_argument(f"{path!r} is empty", "use a file that contains a kernel")
    return data


def headers_of(path: str, code: bytes, folders: Sequence[str], explicit: Mapping[str, str]) -> dict[str, str]:
    """Returns the headers that the source includes and that exist here, by the names in its includes.

    `explicit` headers take precedence. Raises `ArgumentError` for a missing folder, or a header that cannot be read.
    """
    for folder in folders:
        if not Path(folder).is_dir():
            raise invalid_argument(
                f"-I {folder!r} is not a directory",
                "use a directory of this machine; its headers are sent with the source",
            )
    if path.endswith(BINARY) or b"\0" in code:
        return {}
    headers = dict(explicit)
    pending = [(Path(path).parent, code.decode("utf-8", "replace"))]
    pending += [(Path(), text) for text in explicit.values()]
    size = 0
    while pending:
        folder_of_file, text = pending.pop()
        for match in _INCLUDE.finditer(text):
            name = match[1] or match[2]
            if name in headers:
                continue
            search_folders = [folder_of_file, *map(Path, folders)] if match[1] else [*map(Path, folders)]
            header = next((directory / name for directory in search_folders if (directory / name).is_file()), None)
            if header is None:
                continue
            headers[name] = _text(str(header))
            size += len(headers[name])
            if len(headers) > MAX_HEADERS or size > MAX_BYTES:
                raise invalid_argument(
                    f"{path!r} includes more than {MAX_HEADERS} headers or 64 MiB",
                    "use a directory with fewer headers for -I",
                )
            pending.append((header.parent, headers[name]))
    return headers


def headers_of_options(texts: Sequence[str]) -> dict[str, str]:
    """Returns the headers of the options ``--header FILE`` and ``--header NAME=FILE``, by name.

    Without NAME, the name is the file name without folders. Raises `ArgumentError`.
    """
    headers: dict[str, str] = {}
    for text in texts:
        name, equals, path = text.partition("=")
        if not equals:
            name, path = Path(text).name, text
        if not name or not path:
            raise invalid_argument(
                f"--header {text!r} is neither FILE nor NAME=FILE", "use e.g. --header include/tile.h=src/tile.h"
            )
        if name in headers:
            raise invalid_argument(
                f"the header {name!r} is specified twice",
                "specify each header once; --header NAME=FILE gives it another name",
            )
        headers[name] = _text(path)
    return headers


def _text(path: str) -> str:
    try:
        return _read(path).decode()
    except UnicodeDecodeError:
        raise invalid_argument(f"the header {path!r} is not UTF-8 text", "convert the header to UTF-8") from None


def _read(path: str) -> bytes:
    try:
        if not Path(path).is_dir():
            return Path(path).read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise invalid_argument(f"{path!r} cannot be read: {reason}", "use a readable file") from None
    raise invalid_argument(f"{path!r} is a directory", "specify a regular file")
