"""Search for objects that are reachable from an object: finds the holder of an object that should have been freed."""

from __future__ import annotations

import gc
import types
from collections import deque
from collections.abc import Callable, Iterator

_PASSED_OVER = (types.ModuleType, type, types.BuiltinFunctionType, types.FrameType, types.CodeType, str, bytes, float)


def holders(root: object, wanted: Callable[[object], bool]) -> list[str]:
    """Returns the path from `root` to every `wanted` object: `root` itself, a key of a dictionary, or an element of a
    collection. Attributes of objects are followed, but their values themselves are not reported: an int in an attribute
    is not an entry of a table."""
    found: list[str] = []
    seen = {id(root)}
    queue: deque[tuple[object, str]] = deque([(root, type(root).__name__)])
    while queue:
        each, way = queue.popleft()
        for step, inner, entry in _within(each):
            there = way + step
            if isinstance(inner, int):
                if entry and wanted(inner):
                    found.append(there)
                continue
            if inner is None or isinstance(inner, _PASSED_OVER) or id(inner) in seen:
                continue
            seen.add(id(inner))
            if wanted(inner):
                found.append(there)
            else:
                queue.append((inner, there))
    return found


def _within(each: object) -> Iterator[tuple[str, object, bool]]:
    """Yields the objects that `each` refers to directly: the step of the path, the object, and whether it is an entry
    of a collection."""
    if isinstance(each, dict):
        for key, value in list(each.items()):
            yield f"{{{type(key).__name__} {key!r:.40}}}", key, True
            yield f"[{key!r:.60}]", value, True
    elif isinstance(each, (list, tuple, set, frozenset, deque)):
        for index, value in enumerate(list(each)):
            yield f"[{index}]", value, True
    elif isinstance(each, types.FunctionType):
        for cell in each.__closure__ or ():
            yield f".{each.__qualname__}", cell, False
    else:
        attributes = getattr(each, "__dict__", None)
        if isinstance(attributes, dict):
            for name, value in list(attributes.items()):
                yield f".{name}", value, False
        for inner in gc.get_referents(each):
            if inner is not attributes:
                yield f"<{type(inner).__name__}>", inner, False
