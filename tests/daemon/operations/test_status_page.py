"""The status page in a real browser: the display of a daemon that works, fails, stops and starts again."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hearth
from tests.support.daemon.browser import Browser, Tab
from tests.support.daemon.harness import DaemonProcess, StartDaemon, wait_until
from tests.support.daemon.kernels import common
from tests.support.daemon.tenants import tenant, tenants

HOSTILE = """<img src=x onerror="window.hacked = 1"><script>window.hacked = 2</script>&amp;"""
PERFETTO = "https://ui.perfetto.dev"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as started:
        yield started


@pytest.fixture(scope="module")
def watched(cache: Path) -> Iterator[DaemonProcess]:
    """The daemon of most tests here; its last device is reserved for faults."""
    process = DaemonProcess(cache)
    yield process
    process.stop()
    left = process.left_behind()
    process.remove()
    assert not left


@contextlib.contextmanager
def looking(browser: Browser, daemon: DaemonProcess, *, complains: str = "", **window: bool | int) -> Iterator[Tab]:
    """Opens a tab with the page. Checks at the end that the page sent requests only to the daemon, and reported no
    errors except those that `complains` names."""
    base = f"http://{daemon.http}/"
    with browser.tab(**window) as tab:  # type: ignore[arg-type]
        tab.open(base)
        tab.until("document.readyState === 'complete' && location.href !== 'about:blank'")
        yield tab
        assert not [url for url in tab.requests if not url.startswith((base, "data:", "blob:"))]
        assert not [text for text in tab.complaints if not complains or complains not in text]
        assert tab.js("window.hacked === undefined")


def shown(tab: Tab) -> None:
    tab.until("!document.getElementById('data').hidden && document.querySelectorAll('#devices .card').length")


def card(ordinal: int, what: str = "") -> str:
    return f"document.querySelectorAll('#devices .card')[{ordinal}]{what}.textContent"


def row(table: str, text: str) -> str:
    """Returns an expression that is true if a table has a row with a text."""
    wanted = json.dumps(text)
    return f"[...document.querySelectorAll('#{table} tbody tr')].some((row) => row.textContent.includes({wanted}))"


def press(tab: Tab, label: str, within: str = "body") -> None:
    tab.js(
        f"[...document.querySelectorAll({json.dumps(within + ' button')})]"
        f".find((button) => button.textContent === {json.dumps(label)}).click()"
    )


# ---- live updates ----


def test_page_shows_live_changes(browser: Browser, watched: DaemonProcess) -> None:
    with looking(browser, watched) as tab:
        shown(tab)
        assert tab.js("document.querySelectorAll('#devices .card').length") == len(watched.status()["devices"])
        tab.until("document.getElementById('ready').textContent.includes('ready')")
        name = watched.status()["devices"][0]["name"]
        assert tab.js(card(0, ".querySelector('h3')")) == f"0 · {name}"
        assert "serving" in tab.js(card(0, ".querySelector('.badge')"))
        assert tab.js("document.title") == f"{watched.status()['node']} · Hearth"
        with watched.connect(name="a first look") as node:
            tab.until(row("sessions", "a first look"))
            gpu = node.device(0)
            x = gpu.zeros(1 << 22, np.int32)
            kernel = common(gpu, "add_one")
            launches = "document.querySelectorAll('#devices .card')[0].querySelectorAll('dd')[1].textContent"
            seen: list[str] = []

            def launched() -> bool:
                kernel((64,), (256,), (x, np.int32(1 << 14)))
                x.set(np.zeros(1 << 22, np.int32))
                seen.append(tab.js(launches))
                return not seen[-1].startswith("0 ")

            wait_until(launched, "a rate of launches", 30)
            tab.until(card(0, ".querySelector('.memory')") + ".includes('default16 MiB')")
            tab.until("/[1-9].* [MG]iB\\/s/.test(" + card(0, ".querySelectorAll('dd')[2]") + ")")
            throughput = watched.status()["devices"][0]["throughput"]
            assert throughput["launches_per_second"] > 0 and 0 < throughput["busy_ratio"] <= 1
            assert throughput["received_bytes_per_second"] > 1 << 20 and throughput["commands_per_second"] > 0
            tab.until(f"{row('tenants', 'default')} && {row('sessions', 'connected')}")
        tab.until(f"!{row('sessions', 'a first look')}")


def test_running_kernel_is_shown_with_its_session(browser: Browser, watched: DaemonProcess) -> None:
    with watched.connect(name="evaluation") as node, looking(browser, watched) as tab:
        gpu = node.device(0)
        spin = common(gpu, "spin")
        spin((1,), (1,), (np.int64(12 * 10**9),))
        gpu.flush()
        running = card(0, ".querySelector('.running')")
        tab.until(f"{running}.includes('spin') && {running}.includes('evaluation')")
        assert node.session_id in tab.js(running)
        [first] = watched.status()["devices"][0]["running"]
        assert (first["kernel"], first["session"], first["tenant"]) == ("spin", node.session_id, "default")
        [later] = wait_until(lambda: _after(watched, first["seconds"] + 0.5), "the kernel to run on", 20)
        assert later["queued"] == 0
        gpu.synchronize()
        tab.until(f"{running}.includes('no kernel')")
        assert watched.status()["devices"][0]["running"] == []


def _after(daemon: DaemonProcess, seconds: float) -> list[dict[str, Any]]:
    """Returns the running kernels of device 0, if the first has been running for `seconds`."""
    running: list[dict[str, Any]] = daemon.status()["devices"][0]["running"]
    return running if running and running[0]["seconds"] >= seconds else []


def test_sessions_show_memory_and_process_and_published_arrays_are_listed(
    browser: Browser, watched: DaemonProcess
) -> None:
    with watched.connect(name="twin") as one, watched.connect(name="twin") as other, looking(browser, watched) as tab:
        kept = one.device(0).zeros(3 << 20, np.uint8)
        kept.publish("weights", ["*"])
        taken = other.device(0).attach("weights")
        tab.until(row("sessions", f"twin ({socket.gethostname()}:{os.getpid()})") + " && " + row("sessions", "3 MiB"))
        tab.until(
            f"{row('published', 'weights')} && {row('published', 'all tenants')} && {row('published', '1 session')}"
        )
        [entry] = watched.status()["published"]
        assert (entry["session"], entry["bytes"], entry["device"]) == (one.session_id, kept.nbytes, 0)
        sessions = {session["id"]: session for session in watched.status()["sessions"]}
        assert sessions[one.session_id]["memory_bytes"] == kept.nbytes
        assert 0 <= sessions[one.session_id]["device_share"] <= 1
        assert {session.client_process for session in other.sessions()} >= {sessions[one.session_id]["process"]}
        del taken
    wait_until(lambda: not watched.status()["published"], "the end of the publication")


def test_sparklines_are_full_when_the_page_opens(browser: Browser, watched: DaemonProcess) -> None:
    def ages() -> list[float]:
        history: dict[str, Any] = json.loads(watched.get("/history").body)
        found: list[float] = history["devices"][0]["age_seconds"]
        return found

    wait_until(lambda: ages() and ages()[0] > 5, "some seconds of history", 20)
    with looking(browser, watched) as tab:
        shown(tab)
        line = "document.querySelectorAll('#devices .card')[0].querySelector('.spark .over').getAttribute('d')"
        tab.until(f"({line} ?? '').length && Number({line}.match(/M([0-9.]+)/)[1]) < 297")
        assert len(ages()) <= 300


def test_equal_rates_have_equal_heights(browser: Browser, watched: DaemonProcess) -> None:
    document = gpu_node(watched.status())
    rates = [(1000.0, 500.0), (500.0, 1000.0), (0.0, 0.0), (0.0, 0.0)]
    for device, (received, sent) in zip(document["devices"], rates, strict=True):
        device["throughput"] |= {"received_bytes_per_second": received, "sent_bytes_per_second": sent}
    with browser.tab() as tab:
        tab.before_scripts(f"window.fetch = async () => new Response({json.dumps(json.dumps(document))})")
        tab.open(f"http://{watched.http}/")
        shown(tab)
        height = (
            "Number(document.querySelectorAll('#devices .card')[{}].querySelectorAll('.over')[{}]"
            ".getAttribute('d').match(/ ([0-9.]+)/)[1])"
        )
        heights = [[tab.js(height.format(device, figure)) for figure in (2, 3)] for device in (0, 1)]
        assert heights[0] == heights[1][::-1] and heights[0][0] < heights[0][1]


def test_hostile_names_are_escaped(browser: Browser, watched: DaemonProcess) -> None:
    with watched.connect(name=HOSTILE) as hostile, watched.connect(name="b" * 200), looking(browser, watched) as tab:
        tab.until(row("sessions", HOSTILE))
        assert tab.js("document.querySelectorAll('main img, main script').length") == 0
        tab.js("document.getElementById('filter').focus()")
        tab.type("onerror default")
        tab.until("document.querySelectorAll('#sessions tbody tr').length === 1")
        assert tab.js(row("sessions", hostile.session_id))
        for width in (360, 1280):
            tab.show_as(width, 800)
            assert tab.js("document.documentElement.scrollWidth <= innerWidth")


def test_sessions_are_sorted_by_any_column(browser: Browser, watched: DaemonProcess) -> None:
    with watched.connect(name="zebra"), watched.connect(name="aardvark"), looking(browser, watched) as tab:
        tab.until(f"{row('sessions', 'zebra')} && {row('sessions', 'aardvark')}")
        names = "[...document.querySelectorAll('#sessions tbody tr td:first-child')].map((cell) => cell.textContent)"
        for order in (sorted, lambda found: sorted(found, reverse=True)):
            press(tab, "Client", "#sessions")
            found = tab.js(names)
            assert found == order(found) and len(found) >= 2
        assert tab.js("document.querySelector('#sessions th').getAttribute('aria-sort')") == "descending"


def test_hidden_tab_sends_no_requests(browser: Browser, watched: DaemonProcess) -> None:
    with looking(browser, watched) as tab:
        shown(tab)
        hide = "Object.defineProperty(document, 'hidden', {{value: {0}, configurable: true}})"
        change = "document.dispatchEvent(new Event('visibilitychange'))"
        tab.js(hide.format("true") + ";" + change)
        tab.js("new Promise((done) => setTimeout(done, 300))")  # lets pending requests complete
        before = len(tab.requests)
        tab.js("new Promise((done) => setTimeout(done, 1500))")  # time in which no request may be sent
        assert len(tab.requests) == before
        tab.js(hide.format("false") + ";" + change)
        wait_until(lambda: len(tab.requests) > before, "a request")
        press(tab, "Pause", ".state")
        tab.until("document.getElementById('live').textContent === 'paused'")
        press(tab, "Resume", ".state")
        tab.until("document.getElementById('live').textContent === 'live'")


# ---- faults and traces ----


def test_a_fault_is_shown_with_its_kernel(browser: Browser, watched: DaemonProcess) -> None:
    with looking(browser, watched) as tab:
        shown(tab)
        with watched.connect(name="faulty") as node:
            gpu = node.devices[-1]
            with pytest.raises(hearth.DeviceLostError):
                common(gpu, "spin")((1,), (1,), (np.int64(60 * 10**9),), timeout=0.2)
                gpu.synchronize()
        tab.until(f"{row('faults', 'spin')} && {row('faults', f'{gpu.ordinal}, generation 1')}")
        tab.until(f"{row('faults', node.session_id)} && {row('faults', 'default')}")
        tab.until(card(gpu.ordinal) + ".includes('1 lost')")
        tab.until(card(gpu.ordinal, ".querySelector('.badge')") + ".includes('serving')")
        assert tab.js("document.querySelector('#faults tbody td:nth-child(4)').textContent").startswith(
            "kernel spin ran"
        )
        [fault, *_] = watched.status()["faults"]
        assert fault["sessions"] == [{"id": node.session_id, "tenant": "default"}]
        assert fault["kernels"] == ["spin"] and abs(fault["time_unix"] - time.time()) < 60
        assert tab.js("/\\d/.test(document.querySelector('#faults tbody td span').title)")


def test_a_trace_is_downloaded_and_handed_to_perfetto(browser: Browser, watched: DaemonProcess, tmp_path: Path) -> None:
    with watched.connect(name="traced") as node, looking(browser, watched) as tab:
        shown(tab)
        gpu = node.device(0)
        x = gpu.zeros(1000, np.int32)
        with gpu.trace() as trace:
            common(gpu, "add_one")((4,), (256,), (x, np.int32(1000)))
            gpu.synchronize()
        tab.until(row("traces", node.session_id))
        [entry, *_] = watched.status()["traces"]
        assert (entry["session"], entry["tenant"], entry["device"]) == (node.session_id, "default", 0)
        assert entry["events"] == len(trace.events) and 0 < entry["seconds"] < 60
        assert json.loads(watched.get(f"/traces/{entry['id']}.json").body) == trace.to_json()
        tab.call("Page.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
        press(tab, "Download", "#traces tbody tr")
        file = tmp_path / f"hearth-device0-{entry['id'][:8]}.json"
        wait_until(file.exists, "the download", 40)
        assert json.loads(file.read_text()) == trace.to_json()
        # A stand-in for Perfetto's window, so that no data leaves this machine.
        tab.js(
            """(() => {
                const window_ = new MessageChannel().port1;
                window.sent = [];
                window_.postMessage = (message, origin) => {
                    window.sent.push([message, origin]);
                    const from = (origin) => new MessageEvent("message", { origin, source: window_, data: "PONG" });
                    if (message === "PING") [`https://evil.example`, origin].forEach((o) => dispatchEvent(from(o)));
                };
                window.open = (url) => { window.opened = url; return window_; };
            })()"""
        )
        press(tab, "Open in Perfetto", "#traces tbody tr")
        tab.until("window.sent.some(([message]) => message.perfetto)")
        assert tab.js("window.opened") == PERFETTO
        assert tab.js("window.sent.every(([, origin]) => origin === 'https://ui.perfetto.dev')")
        handed = tab.js("new TextDecoder().decode(window.sent.at(-1)[0].perfetto.buffer)")
        assert json.loads(handed) == trace.to_json()
        tab.js("window.open = () => null")
        tab.until("!document.querySelector('#traces button:disabled')")
        press(tab, "Open in Perfetto", "#traces tbody tr")
        tab.until("document.getElementById('trace-note').textContent.includes('opened no window')")


# ---- appearance ----


def gpu_node(status: dict[str, Any]) -> dict[str, Any]:
    """Returns a status document of a node with GPUs in all states, made from the document of a daemon without GPUs."""
    states = {"serving": "", "starting": "its first process is starting", "lost": "it is gone", "fenced": "worn out"}
    devices = []
    for ordinal, (state, detail) in enumerate(states.items()):
        device = copy.deepcopy(status["devices"][0])
        gpu = {"memory_used": 60 << 30, "memory_total": 141 << 30, "utilization": 0.97, "temperature": 71.0,
               "power": 612.4, "sm_clock": 1.98e9}  # fmt: skip
        device |= {"ordinal": ordinal, "state": state, "detail": detail, "name": "NVIDIA H200", "backend": "cuda"}
        device |= {"gpu": gpu, "memory": {"total_bytes": 141 << 30, "used_bytes": 60 << 30}}
        device["memory_by_tenant"] = [{"tenant": f"team {n}", "bytes": (9 - n) << 30} for n in range(8)]
        device["throughput"] = {"commands_per_second": 9e5, "launches_per_second": 1.25e6, "busy_ratio": 0.934,
                                "received_bytes_per_second": 5e10, "sent_bytes_per_second": 0.0}  # fmt: skip
        devices.append(device)
    session = {"client_version": "1", "opened_unix": time.time() - 200_000, "connected": True, "lease_left_seconds": 30,
               "devices": [0, 3], "tenant": "team 1", "dedicated": True, "device_seconds": 98765.4}  # fmt: skip
    sessions = [{"id": f"{n:08x}", "client": f"worker {n}", **session} for n in range(300)]
    return {**status, "ready": False, "devices": devices, "sessions": sessions}


def test_page_shows_gpu_readings(browser: Browser, watched: DaemonProcess) -> None:
    document = json.dumps(gpu_node(watched.status()))
    with browser.tab() as tab:
        tab.before_scripts(f"window.fetch = async () => new Response({json.dumps(document)})")
        tab.open(f"http://{watched.http}/")
        shown(tab)
        first = tab.js(card(0))
        for figure in (
            "71 °C",
            "612 W",
            "1.98 GHz",
            "GPU 97 %",
            "1.25 M/s",
            "93 %",
            "46.6 GiB/s",
            "60 GiB of 141 GiB",
            "2 others",
        ):
            assert figure in first, (figure, first)
        states = tab.js("[...document.querySelectorAll('.card .badge')].map((badge) => badge.textContent)")
        marks = tab.js("[...document.querySelectorAll('.card .badge')].map((badge) => badge.dataset.mark)")
        assert states == ["serving", "starting", "lost", "fenced"] and len(set(marks)) == 4
        assert "worn out" in tab.js(card(3)) and tab.js("document.title").startswith("not ready: ")
        assert "100 more are not shown" in tab.text() and "2 d" in tab.text() and "own processes" in tab.text()
        tab.show_as(360, 740)
        assert tab.js("document.documentElement.scrollWidth") <= 360
        assert not tab.complaints


def test_page_fits_a_phone_in_dark_mode(browser: Browser, watched: DaemonProcess) -> None:
    with watched.connect(name="on the road") as node:
        node.device(0).zeros(8)
        with looking(browser, watched, width=360, height=740, dark=True) as tab:
            tab.until(row("sessions", "on the road"))
            assert tab.js("document.documentElement.scrollWidth") <= 360
            colour = "getComputedStyle(document.body)[{!r}].match(/\\d+/g).slice(0, 3).map(Number)"
            ground, text = tab.js(colour.format("backgroundColor")), tab.js(colour.format("color"))
            assert max(ground) < 60 and min(text) > 180
            tab.show_as(1280, 900, dark=False)
            assert min(tab.js(colour.format("backgroundColor"))) > 200
            assert tab.js("document.documentElement.scrollWidth <= innerWidth")


def test_page_is_accessible(browser: Browser, watched: DaemonProcess) -> None:
    """Landmarks, headings, names of all controls, and keyboard access."""
    with looking(browser, watched) as tab:
        shown(tab)
        tree = tab.call("Accessibility.getFullAXTree")["nodes"]
        nodes = [(node["role"]["value"], node.get("name", {}).get("value", "")) for node in tree if "role" in node]
        roles = {role for role, _ in nodes}
        assert {"banner", "main", "contentinfo", "navigation"} <= roles
        assert ("heading", "Devices") in nodes and ("heading", "Recent traces") in nodes
        assert all(name for role, name in nodes if role in ("button", "link", "searchbox", "table", "image"))
        tab.js("document.querySelector('#sessions th button')?.focus()")
        assert tab.js("[...document.querySelectorAll('button, input, a')].every((each) => each.tabIndex === 0)")
        assert tab.js("document.documentElement.lang") == "en"


# ---- a daemon that stops, and access to the page ----


def test_page_continues_after_a_restart_of_the_daemon(browser: Browser, cache: Path) -> None:
    first = DaemonProcess(cache, cpu_count=1)
    second = None
    try:
        with looking(browser, first, complains="ERR_CONNECTION") as tab:
            shown(tab)
            assert first.stop() == 0 and "Traceback" not in first.log()
            tab.until("!document.getElementById('banner').hidden")
            assert "does not answer" in tab.text() and "Trying again" in tab.text()
            assert tab.js("document.getElementById('data').classList.contains('stale')")
            second = DaemonProcess(cache, cpu_count=1, after=first)
            tab.until("document.getElementById('banner').hidden")
            tab.until("document.getElementById('news').textContent.includes('restarted')")
            assert not tab.js("document.getElementById('data').classList.contains('stale')")
    finally:
        last = second or first
        first.stop()
        last.stop()
        left = [*first.left_behind(), *last.left_behind()]
        last.remove()
    assert not left


def test_traces_and_kernels_of_other_tenants_are_hidden(start_daemon: StartDaemon) -> None:
    """Traces and memory are visible only to their tenant; in a process that tenants share, kernels of other tenants are
    not named."""
    config, tokens = tenants("alice", "bob", tenant("operator", rights=["admin"]), devices={"isolation": "shared"})
    daemon = start_daemon(**config)

    def status(who: str) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(daemon.get("/status", tokens[who]).body)
        return document

    with daemon.connect(token=tokens["alice"]) as alice, daemon.connect(token=tokens["bob"]) as bob:
        gpu = bob.device(0)
        kept = [alice.device(0).zeros(1 << 20, np.uint8), gpu.zeros(1 << 21, np.uint8)]
        alice.device(0).synchronize()
        with gpu.trace():
            gpu.synchronize()
        memory = {who: status(who)["devices"][0]["memory_by_tenant"] for who in tokens}
        assert memory["alice"] == [{"tenant": "alice", "bytes": kept[0].nbytes}]
        assert memory["operator"] == [{"tenant": "bob", "bytes": kept[1].nbytes}, *memory["alice"]]
        assert status("alice")["traces"] == [] and len(status("operator")["traces"]) == 1
        [trace] = status("bob")["traces"]
        path = f"/traces/{trace['id']}.json"
        answers = {who: daemon.get(path, tokens[who]).status for who in tokens}
        assert answers == {"alice": 404, "bob": 200, "operator": 200} and daemon.get(path).status == 401
        with pytest.raises(hearth.DeviceLostError):
            common(gpu, "spin")((1,), (1,), (np.int64(60 * 10**9),), timeout=0.2)
            gpu.synchronize()
        found = {who: wait_until(lambda who=who: status(who)["faults"], "the fault") for who in tokens}
        assert {who: faults[0]["kernels"] for who, faults in found.items()} == {
            "alice": [], "bob": ["spin"], "operator": ["spin"]
        }  # fmt: skip
        assert "spin" not in str(found["alice"]) and found["alice"][0]["reason"] == "fault"
        named = [{"id": bob.session_id, "tenant": "bob"}]
        assert {who: faults[0]["sessions"] for who, faults in found.items()} == {
            "alice": [], "bob": named, "operator": named
        }  # fmt: skip


def test_running_kernels_and_publications_of_others_are_not_shown(start_daemon: StartDaemon) -> None:
    config, tokens = tenants(
        "alice", "bob",
        tenant("operator", rights=["admin"]), devices={"isolation": "shared"},
    )  # fmt: skip
    daemon = start_daemon(**config)

    def status(who: str) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(daemon.get("/status", tokens[who]).body)
        return document

    with daemon.connect(token=tokens["bob"]) as bob:
        gpu = bob.device(0)
        kept = gpu.zeros(100, np.uint8)
        kept.publish("secret weights")
        common(gpu, "spin")((1,), (1,), (np.int64(20 * 10**9),))
        gpu.flush()
        wait_until(lambda: status("operator")["devices"][0]["running"], "the kernel")
        documents = {who: status(who) for who in tokens}
        for who, seen in (("alice", False), ("bob", True), ("operator", True)):
            running = [each["kernel"] for each in documents[who]["devices"][0]["running"]]
            published = [each["name"] for each in documents[who]["published"]]
            assert running == ["spin"] * seen and published == ["secret weights"] * seen
            history = json.loads(daemon.get("/history", tokens[who]).body)
            assert bool(history["devices"]) == (who == "operator"), "only observers see totals of a device"
        assert daemon.get("/history").status == 401


def test_token_is_requested_once(browser: Browser, start_daemon: StartDaemon) -> None:
    config, tokens = tenants(tenant("alice", rights=["read"]), tenant("bob"), tenant("operator", rights=["admin"]))
    guarded = start_daemon(**config)
    visible = "!document.getElementById('ask').hidden"

    def show(tab: Tab, token: str) -> None:
        tab.until(visible)
        tab.js("document.getElementById('token').focus()")
        tab.type(token)
        press(tab, "Show", "#ask")

    with (
        guarded.connect(token=tokens["bob"], name="secret plan"),
        looking(browser, guarded, complains="401") as tab,
    ):
        tab.until(visible)
        assert not [url for url in tab.requests if "status" in url], "without a token the page sends no request"
        for wrong, told in (("a b ä", "no spaces"), ("hearth_wrong", "token is unknown")):
            show(tab, wrong)
            tab.until(f"document.getElementById('ask-why').textContent.includes({told!r})")
            assert tab.js(visible) and tab.js("document.getElementById('data').hidden")
        show(tab, tokens["alice"])
        shown(tab)
        assert tab.js(visible) is False and "secret plan" not in tab.text()
        assert not tab.js("document.querySelector('#links a')?.checkVisibility()"), "a link contains no token"
        assert tokens["alice"] not in " ".join(tab.requests)
        tab.js("location.reload()")
        tab.until("performance.getEntriesByType('navigation')[0].type === 'reload'")
        shown(tab)
        press(tab, "Forget token", ".state")
        tab.until(visible)
        assert tab.js("sessionStorage.length") == 0 and tab.js("document.getElementById('data').hidden")
        show(tab, f"Bearer {tokens['operator']}")
        tab.until(row("sessions", "secret plan"))
