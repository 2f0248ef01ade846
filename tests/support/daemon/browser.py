"""A headless Chromium and one of its tabs, driven by the DevTools protocol over a pipe: no port, and nothing to install
but the browser.

>>> with Browser(profile) as browser, browser.tab() as tab:
...     tab.open("http://...")
...     tab.until("document.title === 'x'")
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import itertools
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.support.programs import program

TIMEOUT = 30.0
"""Timeout in seconds, long because the machine may be busy with other tests."""

_FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--mute-audio",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions",
    "--disable-default-apps", "--no-proxy-server", "--remote-debugging-pipe", "--force-prefers-reduced-motion",
    "--disable-features=Translate,OptimizationHints,MediaRouter,DialMediaRouteProvider",
)  # fmt: skip


_AS_3_AND_4 = "import os, sys; [os.dup2(int(sys.argv[n]), n + 2) for n in (1, 2)]; os.execv(sys.argv[3], sys.argv[3:])"
"""Runs a program with the two given descriptors as 3 and 4: the browser reads commands from 3, and answers on 4."""


class Browser:
    """A browser process. `profile` is an empty folder for this process alone."""

    def __init__(self, profile: Path) -> None:
        self._numbers = itertools.count(1)
        self._answers: dict[int, queue.Queue[dict[str, Any]]] = {}
        self._tabs: dict[str, Tab] = {}
        self._lock = threading.Lock()
        command_pipe, answer_pipe = os.pipe(), os.pipe()
        command = [program("chromium"), *_FLAGS, f"--user-data-dir={profile}", "about:blank"]
        reads, writes = (fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (command_pipe[0], answer_pipe[1]))
        wrapped = [sys.executable, "-Sc", _AS_3_AND_4, str(reads), str(writes), *command]
        self.process = subprocess.Popen(
            wrapped, pass_fds=(reads, writes), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, env={**os.environ, "HOME": str(profile)},
        )  # fmt: skip
        for end in (command_pipe[0], answer_pipe[1], reads, writes):
            os.close(end)
        self._out = command_pipe[1]
        self._reader = threading.Thread(target=self._read, args=(answer_pipe[0],), daemon=True)
        self._reader.start()

    def call(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        """Returns the result of one command. Raises `AssertionError` if the browser refuses the command or does not
        answer."""
        number = next(self._numbers)
        answer = self._answers[number] = queue.Queue(1)
        message = {"id": number, "method": method, "params": params, **({"sessionId": session} if session else {})}
        data = json.dumps(message).encode() + b"\0"
        with self._lock:
            while data:
                data = data[os.write(self._out, data) :]
        try:
            got = answer.get(timeout=TIMEOUT)
        except queue.Empty:
            raise AssertionError(f"the browser did not answer {method}") from None
        finally:
            del self._answers[number]
        assert "error" not in got, (method, got["error"])
        result: dict[str, Any] = got["result"]
        return result

    def _read(self, end: int) -> None:
        remainder = b""
        with contextlib.suppress(OSError):
            while data := os.read(end, 1 << 16):
                *texts, remainder = (remainder + data).split(b"\0")
                for text in texts:
                    message = json.loads(text)
                    if "id" in message:
                        waiting = self._answers.get(message["id"])
                        if waiting is not None:
                            waiting.put(message)
                    elif (tab := self._tabs.get(message.get("sessionId", ""))) is not None:
                        tab.on_event(message["method"], message["params"])
        os.close(end)

    @contextlib.contextmanager
    def tab(self, width: int = 1280, height: int = 900, dark: bool = False) -> Iterator[Tab]:
        """Yields a tab with separate cookies and storage."""
        context = self.call("Target.createBrowserContext")["browserContextId"]
        target = self.call("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        tab = self._tabs[session] = Tab(self, session)
        for domain in ("Page", "Runtime", "Network", "Log"):
            tab.call(f"{domain}.enable")
        tab.show_as(width, height, dark)
        try:
            yield tab
        finally:
            del self._tabs[session]
            self.call("Target.disposeBrowserContext", browserContextId=context)

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(AssertionError, OSError):
            self.call("Browser.close")
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self._out)
        self._reader.join(10)


class Tab:
    """A page, and the record of its requests, errors and warnings."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser = browser
        self._session = session
        self.requests: list[str] = []
        """Addresses that the page requested, including requests that were blocked."""
        self.complaints: list[str] = []
        """Errors and warnings of scripts, of the console, and of the browser (for example, violated policies)."""

    def on_event(self, method: str, params: dict[str, Any]) -> None:
        if method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(params["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.complaints.append(json.dumps(params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.complaints.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        return self._browser.call(method, self._session, **params)

    def show_as(self, width: int, height: int, dark: bool = False) -> None:
        """Sets the size of the window, in CSS pixels, and the colour scheme that the user prefers."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)

    def before_scripts(self, script: str) -> None:
        """Runs a script in each page that is opened from now on, before the page's own scripts."""
        self.call("Page.addScriptToEvaluateOnNewDocument", source=script)

    def js(self, expression: str) -> Any:
        """Returns the value of an expression, or the result of a promise. Raises `AssertionError` if the expression
        throws."""
        got = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True,
                        userGesture=True)  # fmt: skip
        assert "exceptionDetails" not in got, got["exceptionDetails"]
        return got["result"].get("value")

    def until(self, condition: str, seconds: float = TIMEOUT) -> Any:
        """Polls an expression until it is true in the page; returns its value."""
        deadline = time.monotonic() + seconds
        while True:
            with contextlib.suppress(AssertionError):  # the page may be loading
                value = self.js(f"(() => {{ try {{ return {condition}; }} catch (error) {{ return null; }} }})()")
                if value:
                    return value
            assert time.monotonic() < deadline, f"not within {seconds:g} s: {condition}\n{self.text()}"
            time.sleep(0.05)

    def text(self) -> str:
        """Returns the visible text."""
        return str(self.js("document.body ? document.body.innerText : ''"))

    def type(self, text: str) -> None:
        """Types text into the focused element."""
        self.call("Input.insertText", text=text)

    def screenshot(self, path: Path, whole: bool = True) -> None:
        """Takes a screenshot as PNG; with `whole`, including the parts of the page outside the window."""
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        path.write_bytes(base64.b64decode(data))
