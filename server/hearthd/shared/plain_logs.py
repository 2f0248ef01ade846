"""Imports structlog without rich, which it would load for tracebacks in colours. That doubles the start-up time of a
process, and takes some megabytes, in the front and in every device process, for no use in a log file."""

from __future__ import annotations

import sys

if "structlog" not in sys.modules and "rich" not in sys.modules:
    sys.modules["rich"] = None  # type: ignore[assignment]
    try:
        import structlog  # noqa: F401
    finally:
        del sys.modules["rich"]
