"""Request heads and host names: accepted ones, and the status of refused ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hearthd.front.http.head import MAX_FIELDS, MAX_HEAD, MAX_LINE, HeadError, check_beginning, parse
from hearthd.front.http.hosts import host_of, is_own_host, same_origin

GOOD = b"GET /status?max_age=1 HTTP/1.1\r\nHost: localhost:7422\r\nX-Odd!: \xe9 a\tb\r\n\r\n"


def with_fields(*fields: bytes, line: bytes = b"GET / HTTP/1.1") -> bytes:
    return b"\r\n".join((line, b"Host: x", *fields)) + b"\r\n\r\n"


def test_head_is_parsed_and_forwarded_without_ignored_fields() -> None:
    head = parse(GOOD)
    assert (head.method, head.target, head.probe) == ("GET", "/status?max_age=1", False)
    assert head.fields[b"host"] == b"localhost:7422" and head.data == GOOD
    asked = with_fields(b"Upgrade: h2c", b"Expect: 100-continue", b"Accept: */*")
    assert parse(asked).data == with_fields(b"Accept: */*")
    assert parse(b"HEAD /readyz HTTP/1.0\r\n\r\n").probe, "HTTP/1.0 has no Host"


@pytest.mark.parametrize(
    ("data", "status", "reason"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", 400, "bad_request"),  # no Host header
        (with_fields(b"Host: y"), 400, "bad_request"),
        (b"GET /\r\n\r\n", 400, "bad_request"),
        (b"\x16\x03\x01\r\n\r\n", 400, "bad_request"),
        (b"PRI * HTTP/2.0\r\n\r\n", 400, "bad_request"),
        (with_fields(line=b"GET http://x/status HTTP/1.1"), 400, "bad_request"),
        (with_fields(line=b"GET  / HTTP/1.1"), 400, "bad_request"),
        (with_fields(b"X : y"), 400, "bad_request"),
        (with_fields(b"X: y", b" folded"), 400, "bad_request"),
        (with_fields(b"X: a\nY: b"), 400, "bad_request"),
        (with_fields(b"X: \x00"), 400, "bad_request"),
        (with_fields(b"\xff: y"), 400, "bad_request"),
        (with_fields(b"Content-Length: -1"), 400, "bad_request"),
        (with_fields(b"Content-Length: 0", b"Content-Length: 0"), 400, "bad_request"),
        (with_fields(b"Content-Length: 1"), 413, "body"),
        (with_fields(b"Transfer-Encoding: chunked"), 400, "body"),
        (with_fields(line=b"POST / HTTP/1.1"), 405, "method"),
        (with_fields(line=b"CONNECT / HTTP/1.1"), 405, "method"),
        (with_fields(line=b"OPTIONS * HTTP/1.1"), 405, "method"),
        (with_fields(line=b"GET /" + b"a" * MAX_LINE + b" HTTP/1.1"), 414, "line_too_long"),
        (with_fields(b"X: " + b"a" * MAX_HEAD), 431, "head_too_large"),
        (with_fields(*[b"X: y"] * MAX_FIELDS), 431, "head_too_large"),
    ],
)
def test_invalid_heads_are_refused(data: bytes, status: int, reason: str) -> None:
    with pytest.raises(HeadError) as error:
        parse(data)
    assert (error.value.status, error.value.reason) == (status, reason) and error.value.fix


def test_invalid_beginning_of_a_head_is_refused_immediately() -> None:
    for length in range(1, len(GOOD)):
        check_beginning(GOOD[:length])
    for begun in (b"\x00", b"\x16\x03\x01", b"{", b"GET" + b"a" * MAX_HEAD, b"GET /" + b"a" * MAX_LINE,
                  GOOD[:-2] + b"X: " + b"a" * MAX_HEAD):  # fmt: skip
        with pytest.raises(HeadError):
            check_beginning(begun)


@given(st.binary(max_size=200))
def test_any_bytes_are_parsed_or_refused(data: bytes) -> None:
    for each in (data + b"\r\n\r\n", with_fields(data), with_fields(line=b"GET /" + data + b" HTTP/1.1")):
        try:
            head = parse(each)
        except HeadError:
            continue
        assert head.data.count(b"\r\n\r\n") == 1 and b"\0" not in head.data


def test_hosts_that_cannot_be_rebound_are_accepted() -> None:
    names = ["gpu1", "GPU.Example.org.", "*.cluster.example"]
    for good in ("localhost:7422", "x.localhost", "127.0.0.1", "10.1.2.3:7422", "[::1]:7422", "gpu1", "gpu1.:80",
                 "gpu.example.org", "a.b.cluster.example", "LOCALHOST"):  # fmt: skip
        assert is_own_host(good, names), good
    for bad in (
        "", "evil.example", "localhost.evil.example", "cluster.example", "xcluster.example", "gpu1.evil.example",
        "localhost:", "a b", "localhost:7422, x", "[::1", "127.0.0.1.evil.example", "user@localhost",
    ):  # fmt: skip
        assert not is_own_host(bad, names), bad
    assert is_own_host("evil.example", ["*"]) and not is_own_host("gpu1", [])
    assert host_of("[FE80::1]:7") == "fe80::1" and host_of("") is None


def test_only_pages_of_the_daemon_ask_for_data() -> None:
    host = "gpu1:7422"
    assert same_origin(host, None, None) and same_origin(host, "http://gpu1:7422", "same-origin")
    assert same_origin(host, None, "none"), "a user typed the address"
    for origin, site in (
        ("http://evil", None), ("null", None), (None, "cross-site"), (None, "same-site"),
        ("http://gpu1:7423", "same-site"), ("ftp://gpu1:7422", None), ("gpu1:7422", None),
    ):  # fmt: skip
        assert not same_origin(host, origin, site), (origin, site)
