"""Generic gRPC tools: they call the daemon by server reflection, and show the reason, the fix and the fields.

Each tool is optional. grpc_requests is in the extra dev; `make tools` installs grpcurl and, on a machine with npm, the
packages for Node.js.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import grpc
import pytest

import hearth
from tests.support.daemon.harness import DaemonProcess
from tests.support.daemon.raw import TIMEOUT, Raw
from tests.support.folders import ROOT

BIN = Path(sys.executable).parent
NODE_MODULES = Path(sys.prefix) / "node" / "node_modules"
"""The folder of packages for Node.js in the tests' environment."""
TEXT = "INVALID_ARGUMENT: 7 is not an allocation mode. Fix: ALLOCATION_MODE_PERSISTENT opens a window"


def wrong_mode(raw: Raw) -> dict[str, Any]:
    """Returns a request of SetAllocationMode with an unknown mode, in JSON as the proto3 mapping has it."""
    return {"target": {"sessionToken": raw.token}, "command": {"mode": 7}}


# ---- grpcurl ----


@pytest.fixture
def grpcurl() -> str:
    found = shutil.which("grpcurl", path=str(BIN)) or shutil.which("grpcurl")
    if found is None:
        pytest.skip("grpcurl is not installed: `make tools`")
    return found


def run(tool: str, daemon: DaemonProcess, *arguments: str, fails: bool = False) -> Any:
    command = [tool, "-plaintext", *arguments[:-1], daemon.grpc, arguments[-1]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    assert bool(done.returncode) == fails, done.stderr
    return json.loads(done.stderr if fails else done.stdout)


def test_grpcurl_writes_json_names(grpcurl: str, daemon: DaemonProcess) -> None:
    answer = run(grpcurl, daemon, "hearth.v1.NodeService/Describe")
    assert answer["serverVersion"] and answer["devices"][0]["properties"]["maxThreadsPerBlock"]


def test_grpcurl_shows_reason_fix_and_fields(grpcurl: str, daemon: DaemonProcess, raw: Raw) -> None:
    request = json.dumps(wrong_mode(raw))
    method = "hearth.v1.DeviceService/SetAllocationMode"
    status = run(grpcurl, daemon, "-format-error", "-d", request, method, fails=True)
    assert status["code"] == grpc.StatusCode.INVALID_ARGUMENT.value[0] and status["message"].startswith(TEXT)
    info, bad = status["details"]
    assert info["@type"].endswith("/google.rpc.ErrorInfo") and info["reason"] == "INVALID_ARGUMENT"
    assert info["metadata"]["mode"] == "7" and info["metadata"]["fix"] in status["message"]
    assert bad["@type"].endswith("/google.rpc.BadRequest")
    assert bad["fieldViolations"] == [{"field": "command.mode", "description": "7 is not an allocation mode"}]


# ---- grpc_requests ----


def test_grpc_requests_shows_reason_and_fix(daemon: DaemonProcess, raw: Raw) -> None:
    if importlib.util.find_spec("grpc_requests") is None:
        pytest.skip("grpc_requests is not installed: the extra dev")
    program = f"""
import json, sys, grpc
from grpc_requests import Client
client = Client({daemon.grpc!r})
service = client.service("hearth.v1.DeviceService")
assert client.request("hearth.v1.NodeService", "Describe")["devices"]
try:
    service.SetAllocationMode(json.loads(sys.argv[1]))
except grpc.RpcError as error:
    print(json.dumps([error.code().name, error.details()]))
"""
    command = [sys.executable, "-c", program, json.dumps(wrong_mode(raw))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    assert done.returncode == 0, done.stderr
    code, text = json.loads(done.stdout)
    assert code == "INVALID_ARGUMENT" and text.startswith(TEXT)


# ---- Node.js ----


def test_node_shows_reason_and_fix(daemon: DaemonProcess, raw: Raw) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("Node.js is not installed")
    if not (NODE_MODULES / "@grpc" / "grpc-js").is_dir() or not (NODE_MODULES / "@grpc" / "proto-loader").is_dir():
        pytest.skip("the packages @grpc/grpc-js and @grpc/proto-loader are not installed: `make tools`")
    program = """
const grpc = require("@grpc/grpc-js"), loader = require("@grpc/proto-loader");
const [target, root, request] = process.argv.slice(-3);
const files = loader.loadSync("hearth_proto/v1/device.proto", {includeDirs: [root], enums: String});
const service = grpc.loadPackageDefinition(files).hearth.v1.DeviceService;
const client = new service(target, grpc.credentials.createInsecure());
client.SetAllocationMode(JSON.parse(request), (error) => {
  console.log(JSON.stringify([error.code, error.details]));
  client.close();
});
"""
    root = ROOT / "proto"
    command = [node, "-e", program, "--", daemon.grpc, str(root), json.dumps(wrong_mode(raw))]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=TIMEOUT, check=False, cwd=NODE_MODULES.parent
    )
    assert done.returncode == 0, done.stderr
    code, text = json.loads(done.stdout)
    assert code == grpc.StatusCode.INVALID_ARGUMENT.value[0] and text.startswith(TEXT)


# ---- Hearth's own client ----


def test_a_client_shows_reason_and_fix_once(daemon: DaemonProcess) -> None:
    texts = set()
    for options in ({}, {"lanes": False}):
        with daemon.connect(**options) as node, pytest.raises(hearth.HearthError) as caught:
            node.end_session("none")
        error = caught.value
        assert error.reason == "INVALID_HANDLE" and error.fix and error.fix not in error.message
        texts.add(str(error))
    (text,) = texts
    assert text.count("Fix:") == 1 and "INVALID_HANDLE" not in text
