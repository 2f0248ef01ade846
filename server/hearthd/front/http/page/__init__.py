"""The live status page: a few files, read once and served from memory.

The files contain no data, so they are served without a token; the script requests `/status`. They send requests only to
the daemon, and their content security policy allows no others.
"""

from __future__ import annotations

import hashlib
from importlib import resources

from aiohttp import web

_MEDIA_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript"}
_OPEN, _GUARDED = b"<html ", b'<html data-guarded="" '
"""Start of the page, without and with the attribute that makes the script ask for a token before its first request."""
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class Page:
    """The files of the page: `index.html` at /, the others under /page/."""

    def __init__(self) -> None:
        self._files: dict[tuple[str, bool], tuple[bytes, str, str]] = {}
        """Body, media type and entity tag of each file, by its path and True if the daemon requires tokens."""
        for file in resources.files(__name__).iterdir():
            media_type = _MEDIA_TYPES.get(file.name.rpartition(".")[2])
            if media_type is None:
                continue
            body = file.read_bytes()
            path = "/" if file.name == "index.html" else f"/page/{file.name}"
            for guarded in (False, True):
                content = body.replace(_OPEN, _GUARDED, 1) if guarded and path == "/" else body
                self._files[path, guarded] = (content, media_type, f'"{hashlib.sha256(content).hexdigest()[:20]}"')
        self.paths = frozenset(path for path, _ in self._files)
        """The paths of the files."""

    def answer(self, request: web.Request, *, guarded: bool) -> web.Response:
        """Returns one of the files, or status 304 if the browser already has its present version."""
        body, media_type, tag = self._files[request.path, guarded]
        headers = {"ETag": tag, "Cache-Control": "no-cache", "Content-Security-Policy": _POLICY}
        known_tags = request.headers.get("If-None-Match", "")
        if known_tags.strip() == "*" or tag in (
            known_tag.strip().removeprefix("W/") for known_tag in known_tags.split(",")
        ):
            return web.Response(status=304, headers=headers)
        return web.Response(body=body, content_type=media_type, charset="utf-8", headers=headers)
