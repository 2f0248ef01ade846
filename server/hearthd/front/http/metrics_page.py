"""GET /metrics: collected at most once per viewer in `http.metrics_max_age` seconds, and rendered in a thread."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable

from prometheus_client.core import Metric

from hearthd.front.http.cached import CachedResponse
from hearthd.front.metrics.collector import Metrics, encoder_of
from hearthd.front.tenancy.tenants import Tenant

_EXPIRY_S = 60.0
"""Time, in seconds, without a request after which the pages of a viewer are dropped."""
_FORMATS = 8
"""Maximum number of formats that are kept of one viewer's metrics."""
Page = tuple[bytes, str]
"""The body and the content type."""


class MetricsPages:
    """The metrics pages, by viewer and format. Belongs to the event loop."""

    def __init__(self, collect: Callable[[Tenant], Awaitable[list[Metric]]], max_age: float) -> None:
        """Creates the object. `max_age`: time, in seconds, for which collected metrics are used."""
        self._max_age = max_age
        self._collect = collect
        self._viewers: dict[Tenant, _Viewer] = {}

    async def get(self, viewer: Tenant, accept: str) -> Page:
        """Returns the page, restricted to what `viewer` may see, in the format that the Accept header selects."""
        for idle in [idle for idle, pages in self._viewers.items() if pages.families.age > _EXPIRY_S]:
            self._viewers.pop(idle).close()
        pages = self._viewers.get(viewer)
        if pages is None:
            pages = self._viewers[viewer] = _Viewer(lambda: self._collect(viewer))
        return await pages.get(accept, self._max_age)

    def close(self) -> None:
        """Cancels the pages that are being collected or rendered."""
        for pages in self._viewers.values():
            pages.close()


class _Viewer:
    def __init__(self, collect: Callable[[], Awaitable[list[Metric]]]) -> None:
        self.families = CachedResponse(collect)
        self._formats: dict[str, tuple[list[Metric], CachedResponse[Page]]] = {}
        """Metrics families and the page built from them, by content type."""

    async def get(self, accept: str, max_age: float) -> Page:
        _, content_type = encoder_of(accept)
        families = await self.families.get(max_age)
        rendered, page = self._formats.get(content_type, (None, None))
        if page is None or rendered is not families:
            if len(self._formats) >= _FORMATS:
                self._formats.clear()

            async def render() -> Page:
                return await asyncio.to_thread(Metrics.render, families, accept)

            page = CachedResponse(render)
            self._formats[content_type] = families, page
        return await page.get(math.inf)

    def close(self) -> None:
        self.families.close()
        for _, page in self._formats.values():
            page.close()
