"""Imports structlog without rich, which structlog would load for tracebacks in colour.

Rich would double the start-up time and take some megabytes, in the front and in every device process, without any use
in a log file.
"""

from __future__ import annotations

import sys

if "structlog" not in sys.modules and "rich" not in sys.modules:
    sys.modules["rich"] = None  # type: ignore[assignment]
    try:
        import structlog  # noqa: F401
    finally:
        del sys.modules["rich"]
