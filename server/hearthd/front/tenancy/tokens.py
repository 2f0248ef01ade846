"""The form of bearer tokens: their prefix, the placeholders of samples, well-known hashes. Pure."""

from __future__ import annotations

import functools
import hashlib
import re
import secrets

PREFIX = "hearth_"
"""Begins every token, so that a daemon refuses words that were meant for something else, and scanners of repositories
find tokens that were committed."""
MIN_RANDOM = 22
"""Characters after the prefix: 128 bits in base64. `make` takes 43."""
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
    """A token of 256 random bits."""
    return PREFIX + secrets.token_urlsafe(32)


def well_formed(token: str) -> bool:
    """Returns True if `token` has the form that `make` gives; other texts are not looked up."""
    return _TOKEN.fullmatch(token) is not None


def is_placeholder(digest: str) -> bool:
    """Returns True if `digest`, as the configuration has it, is left over from a sample and names no token."""
    return _PLACEHOLDER.fullmatch(digest) is not None


@functools.cache
def _weak() -> dict[str, str]:
    """Hashes of words, as the configuration writes them, and the word of each."""
    return {
        f"sha256:{hashlib.sha256(text.encode()).hexdigest()}": text
        for word in _WORDS
        for text in (word, f"{word}\n", PREFIX + word)
    }


def weak_word(digest: str) -> str | None:
    """The word that `digest` is the hash of; None: none that is known."""
    return _weak().get(digest)
