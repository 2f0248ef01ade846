"""The form of bearer tokens: their prefix, the placeholders in samples, and hashes of well-known words. Pure."""

from __future__ import annotations

import functools
import hashlib
import re
import secrets

PREFIX = "hearth_"
"""Prefix of every token. With it, a daemon can refuse texts that were meant for another purpose, and scanners of
repositories can find tokens that were committed."""
MIN_RANDOM = 22
"""Minimum number of characters after the prefix: 128 bits in base64. `make` creates 43 characters."""
_TOKEN = re.compile(rf"{PREFIX}[A-Za-z0-9_-]{{{MIN_RANDOM},}}")
_PLACEHOLDER = re.compile(r"sha256:(?:0{56}[0-9a-f]{8}|x+|.*(?:put|replace|here|[<>]|\.\.\.).*)", re.IGNORECASE)
_WORDS = (
    "", "a", "abc", "abc123", "admin", "alice", "bar", "baz", "bob", "change-me", "changeme", "ci", "default", "demo",
    "example", "foo", "foobar", "gpu", "guest", "hearth", "hearth_", "hello", "hello world", "letmein", "me", "mytoken",
    "my-token", "operator", "pass", "passw0rd", "password", "pipeline", "prometheus", "qwerty", "research", "root",
    "sample", "scrape", "secret", "test", "testing", "the-token", "token", "user", "web", "x", "xxx", "your-token",
    "0", "1", "123", "1234", "12345", "123456", "12345678", "123456789", "1234567890",
)  # fmt: skip


def make() -> str:
    """Returns a new token with 256 random bits."""
    return PREFIX + secrets.token_urlsafe(32)


def well_formed(token: str) -> bool:
    """Returns True if `token` has the form that `make` produces. Other texts are not looked up."""
    return _TOKEN.fullmatch(token) is not None


def is_placeholder(digest: str) -> bool:
    """Returns True if `digest`, as configured, is a placeholder from a sample and belongs to no token."""
    return _PLACEHOLDER.fullmatch(digest) is not None


@functools.cache
def _weak_hashes() -> dict[str, str]:
    """Returns the hashes of well-known words, as the configuration writes them, with the word of each."""
    return {
        f"sha256:{hashlib.sha256(text.encode()).hexdigest()}": text
        for word in _WORDS
        for text in (word, f"{word}\n", PREFIX + word)
    }


def weak_word(digest: str) -> str | None:
    """Returns the word of which `digest` is the hash; None: it is not a hash of a well-known word."""
    return _weak_hashes().get(digest)
