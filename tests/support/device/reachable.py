"""Search for objects that are reachable from an object: finds the holder of an object that should have been freed."""

from __future__ import annotations

import gc
import types
from collections import deque
from collections.abc import Callable, Iterator

_PASSED_OVER = (types.ModuleType, type, types.BuiltinFunctionType, types.FrameType, types.CodeType, str, bytes, float)


def holders(root: object, matches: Callable[[object], bool]) -> list[str]:
    """Returns the path from `root` to every object that `matches` accepts, each a key or an element of a collection.

    Attributes of objects are followed, but an int in an attribute is not reported, because it is not an entry of a
    table.
    """
    paths: list[str] = []
    visited = {id(root)}
    queue: deque[tuple[object, str]] = deque([(root, type(root).__name__)])
    while queue:
        holder, path = queue.popleft()
        for suffix, inner, entry in _within(holder):
            inner_path = path + suffix
            if isinstance(inner, int):
                if entry and matches(inner):
                    paths.append(inner_path)
                continue
            if inner is None or isinstance(inner, _PASSED_OVER) or id(inner) in visited:
                continue
            visited.add(id(inner))
            if matches(inner):
                paths.append(inner_path)
            else:
                queue.append((inner, inner_path))
    return paths


def _within(holder: object) -> Iterator[tuple[str, object, bool]]:
    """Yields the objects that `holder` refers to directly: the step of the path, the object, and whether it is an entry
    of a collection."""
    if isinstance(holder, dict):
        for key, value in list(holder.items()):
            yield f"{{{type(key).__name__} {key!r:.40}}}", key, True
            yield f"[{key!r:.60}]", value, True
    elif isinstance(holder, (list, tuple, set, frozenset, deque)):
        for index, value in enumerate(list(holder)):
            yield f"[{index}]", value, True
    elif isinstance(holder, types.FunctionType):
        for cell in holder.__closure__ or ():
            yield f".{holder.__qualname__}", cell, False
    else:
        attributes = getattr(holder, "__dict__", None)
        if isinstance(attributes, dict):
            for name, value in list(attributes.items()):
                yield f".{name}", value, False
        for inner in gc.get_referents(holder):
            if inner is not attributes:
                yield f"<{type(inner).__name__}>", inner, False
