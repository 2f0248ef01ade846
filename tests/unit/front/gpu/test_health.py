"""GPU faults, NVML's readings, and the fencing of devices."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from hearth_proto.reasons import Reason
from hearth_proto.v1 import device_pb2, node_pb2
from hearthd.front.gpu import health
from hearthd.front.gpu.nvml import Nvml
from hearthd.front.gpu.reading import RECOVERY, THROTTLING, GpuReading
from hearthd.front.gpu.watch import GpuWatch
from hearthd.front.metrics import gpu
from hearthd.front.rpc import node_status
from hearthd.front.rpc.node_status import NodeStatus
from hearthd.front.supervisor.supervisor import FENCED, SERVING
from tests.support.front.fixture import front, refused, run, until

UUID = "0a1b"


@pytest.mark.parametrize("xid", sorted(health.FATAL_XIDS))
def test_xids_that_only_a_reset_helps_against(xid: int) -> None:
    assert f"Xid {xid}" in health.hardware_fault(GpuReading(xids={13: 5, xid: 1}))
    assert not health.hardware_fault(GpuReading(xids={xid: 1}), {xid: 1}), "an operator has handled this error"
    assert health.hardware_fault(GpuReading(xids={xid: 2}), {xid: 1}), "and it occurred again"


WELL = [
    GpuReading(),
    GpuReading(xids={13: 100, 31: 100, 43: 100, 45: 100, 94: 3}),
    GpuReading(ecc_uncorrected=5, remap_pending=True),
    GpuReading(throttling={"hw_thermal_slowdown": True}),
    GpuReading(temperature=95.0, remap_failed=False),
]


@pytest.mark.parametrize("reading", WELL)
def test_kernel_faults_and_heat_do_not_fence_a_gpu(reading: GpuReading) -> None:
    assert health.hardware_fault(reading) == ""


def test_permanent_gpu_failures() -> None:
    assert "restart the machine" in health.hardware_fault(GpuReading(lost=True))
    assert "replaced" in health.hardware_fault(GpuReading(remap_failed=True))


def test_recovery_action_of_the_driver_overrides_xids() -> None:
    assert health.hardware_fault(GpuReading(recovery="none", xids={79: 1})) == ""
    for action in RECOVERY:
        sick = health.hardware_fault(GpuReading(recovery=action))
        assert bool(sick) == (action in health.RECOVERIES), action
        assert bool(health.problems(GpuReading(recovery=action))) == (action != "none"), action


def test_complaints() -> None:
    assert health.problems(GpuReading()) == []
    sore = GpuReading(remap_pending=True, ecc_uncorrected=2, throttling=dict.fromkeys(THROTTLING, True))
    assert len(health.problems(sore)) == 4


# ---- watch ----


class Device:
    def __init__(self) -> None:
        self.ordinal, self.sick = 0, ""

    def fence(self, why: str) -> None:
        self.sick = why


async def nothing() -> dict[int, GpuReading]:
    return {}


def test_a_fence_that_an_operator_lifts_stays_lifted_until_something_new() -> None:
    device, bystander = Device(), Device()
    bystander.ordinal = 1
    watch = GpuWatch([device, bystander], nothing)
    watch.check({0: GpuReading(), 1: GpuReading()})
    assert not device.sick
    watch.check({0: GpuReading(xids={79: 1}), 1: GpuReading()})
    assert "79" in device.sick and not bystander.sick
    watch.check({0: GpuReading(xids={79: 1})})
    device.sick = ""
    for _ in range(2):
        watch.check({0: GpuReading(xids={79: 1})})
        assert not device.sick
    watch.check({0: GpuReading(xids={79: 2})})
    assert "79" in device.sick
    device.sick = ""
    watch.check({0: GpuReading(xids={79: 2}, remap_failed=True)})
    assert "replaced" in device.sick, "a persistent failure is detected again"
    watch.check({})


def test_a_sick_gpu_is_fenced_and_its_neighbours_serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver reports an Xid of GPU 0, and the daemon's watch fences the device."""
    fell_ill = asyncio.Event()

    async def readings(_status: NodeStatus) -> dict[int, GpuReading]:
        await fell_ill.wait()
        return {0: GpuReading(xids={79: 1}), 1: GpuReading()}

    monkeypatch.setattr(NodeStatus, "readings", readings)

    async def scenario() -> None:
        async with front(tmp_path) as f:
            names = health_pb2_grpc.HealthStub(f.channel)

            async def comes_to(name: str, wanted: int) -> None:
                while (await names.Check(health_pb2.HealthCheckRequest(service=name))).status != wanted:  # noqa: ASYNC110  (there is no event to wait for)
                    await asyncio.sleep(0.002)

            await f.open()
            await f.devices.Sync(device_pb2.SyncRequest(target=f.target(0)))
            first = f.target(0)
            device = f.daemon.supervisor.find(0)
            assert device.state == SERVING
            fell_ill.set()
            await until(lambda: device.state == FENCED)
            assert "Xid 79" in device.detail
            assert f.daemon.supervisor.find(1).state == SERVING
            assert node_status.ready(f.daemon.supervisor, False), "the node serves"
            await f.devices.Sync(device_pb2.SyncRequest(target=first))  # an existing session may still use the device
            await f.open("another")
            refusal = await refused(f.devices.Sync(device_pb2.SyncRequest(target=f.target(0))))
            assert refusal.reason == Reason.DEVICE_UNAVAILABLE and "Xid 79" in refusal.message
            await f.devices.Sync(device_pb2.SyncRequest(target=f.target(1)))
            await comes_to("device/0", health_pb2.HealthCheckResponse.NOT_SERVING)
            await comes_to("device/1", health_pb2.HealthCheckResponse.SERVING)
            await comes_to("", health_pb2.HealthCheckResponse.SERVING)
            await f.node.RestartDevice(node_pb2.RestartDeviceRequest(device=0))
            assert device.sick == ""
            # A new process, not the one that is being ended.
            await until(lambda: device.generation == 2 and device.state == SERVING)
            await f.devices.Sync(device_pb2.SyncRequest(target=f.target(0)))

    run(scenario())


# ---- NVML ----


class Library:
    """A fake pynvml with one GPU. It returns the values that are set here, and does not support others."""

    def __init__(self, **readings: Any) -> None:
        self.readings = {"nvmlDeviceGetUUID": f"GPU-{UUID}", **readings}
        self.asked: list[str] = []
        self.events: list[int] = []
        self.shut = False

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("nvml"):
            return getattr(pynvml, name)  # constants and error classes
        if name.startswith("nvmlEventType"):
            return getattr(pynvml, name)

        def answer(*arguments: Any) -> Any:
            self.asked.append(name)
            found = self.readings.get(name, pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED))
            if isinstance(found, Exception):
                raise found
            return found(*arguments) if callable(found) else found

        return answer

    def nvmlInit(self) -> None: ...

    def nvmlShutdown(self) -> None:
        self.shut = True

    def nvmlDeviceGetHandleByUUID(self, name: str) -> str:
        if name != f"GPU-{UUID}":
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return name

    def nvmlEventSetCreate(self) -> object:
        return self

    def nvmlDeviceRegisterEvents(self, handle: Any, types: int, events: object) -> None:
        assert types == pynvml.nvmlEventTypeXidCriticalError and events is self

    def nvmlEventSetFree(self, events: object) -> None: ...

    def nvmlEventSetWait_v2(self, events: object, milliseconds: int) -> Any:
        assert milliseconds == 0, "the call does not block"
        if not self.events:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_TIMEOUT)
        return SimpleNamespace(device=f"GPU-{UUID}", eventData=self.events.pop(0))


def fields(handle: Any, wanted: tuple[Any, ...]) -> list[Any]:
    """Returns a memory temperature, a recovery action and the NVLink bytes received in KiB; the bytes sent are not
    supported."""
    known = {
        pynvml.NVML_FI_DEV_MEMORY_TEMP: (pynvml.NVML_VALUE_TYPE_UNSIGNED_INT, 61),
        pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION: (pynvml.NVML_VALUE_TYPE_UNSIGNED_INT, 4),
        pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX: (pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG, 3),
    }
    found = []
    for each in wanted:
        number, scope = each if isinstance(each, tuple) else (each, 0)
        assert scope in (0, 0xFFFFFFFF)
        kind, value = known.get(number, (pynvml.NVML_VALUE_TYPE_UNSIGNED_INT, 99))
        result = pynvml.NVML_SUCCESS if number in known else pynvml.NVML_ERROR_NOT_SUPPORTED
        values = SimpleNamespace(uiVal=value, ullVal=value)
        found.append(SimpleNamespace(fieldId=number, nvmlReturn=result, valueType=kind, value=values))
    return found


def everything() -> Library:
    return Library(
        nvmlDeviceGetMemoryInfo=SimpleNamespace(used=10, total=100),
        nvmlDeviceGetUtilizationRates=SimpleNamespace(gpu=50, memory=25),
        nvmlDeviceGetEncoderUtilization=[10, 1000],
        nvmlDeviceGetDecoderUtilization=[20, 1000],
        nvmlDeviceGetTemperature=40,
        nvmlDeviceGetPowerUsage=250_000,
        nvmlDeviceGetEnforcedPowerLimit=700_000,
        nvmlDeviceGetTotalEnergyConsumption=5_000,
        nvmlDeviceGetClockInfo=lambda handle, which: 1980 if which == pynvml.NVML_CLOCK_SM else 3201,
        nvmlDeviceGetPcieReplayCounter=0,
        nvmlDeviceGetTotalEccErrors=lambda handle, kind, counter: 7 if kind == 0 else 1,
        nvmlDeviceGetRemappedRows=(3, 1, 1, 0),
        nvmlDeviceGetCurrentClocksEventReasons=0x44,
        nvmlDeviceGetFieldValues=fields,
    )


def test_readings_are_in_base_units() -> None:
    reading = Nvml(everything()).read(UUID)
    assert reading == GpuReading(
        memory_used=10, memory_total=100, utilization=0.5, memory_utilization=0.25, encoder_utilization=0.1,
        decoder_utilization=0.2, temperature=40.0, memory_temperature=61, power=250.0, power_limit=700.0, energy=5.0,
        sm_clock=1.98e9, memory_clock=3.201e9, pcie_replays=0, nvlink_received=3072, ecc_corrected=7,
        ecc_uncorrected=1, rows_remapped_corrected=3, rows_remapped_uncorrected=1, remap_pending=True,
        remap_failed=False, recovery="drain_and_reset",
        throttling={name: name in ("sw_power_cap", "hw_thermal_slowdown") for name in THROTTLING},
    )  # fmt: skip


def test_unsupported_readings_are_omitted_and_not_queried_again() -> None:
    library = Library(nvmlDeviceGetTemperature=40)
    nvml = Nvml(library)
    assert nvml.read(UUID) == GpuReading(temperature=40.0)
    library.asked.clear()
    assert nvml.read(UUID) == GpuReading(temperature=40.0)
    assert library.asked == ["nvmlDeviceGetTemperature"]
    assert nvml.read("another") is None and nvml.read("") is None
    nvml.close()
    assert library.shut and nvml.read(UUID) is None


def test_xids_are_counted_by_number() -> None:
    library = Library()
    nvml = Nvml(library)
    nvml.read(UUID)
    library.events = [31, 79, 31]
    assert (nvml.read(UUID) or GpuReading()).xids == {31: 2, 79: 1}
    library.events = [31, *range(1000, 2000)]
    counts = (nvml.read(UUID) or GpuReading()).xids
    assert counts[31] == 3 and len(counts) == 64, "labels of metrics are bounded"


def test_a_gpu_that_the_driver_has_lost() -> None:
    lost = pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
    reading = Nvml(Library(nvmlDeviceGetMemoryInfo=lost)).read(UUID)
    assert reading == GpuReading(lost=True)


def test_a_driver_that_hangs_costs_one_reader() -> None:
    asked, go_on = threading.Event(), threading.Event()

    def hang(handle: Any) -> Any:
        asked.set()
        go_on.wait(20)

    nvml = Nvml(Library(nvmlDeviceGetMemoryInfo=hang), time_limit=0.05)
    reader = threading.Thread(target=nvml.read, args=(UUID,))
    reader.start()
    try:
        assert asked.wait(20)
        assert nvml.read(UUID) is None
        nvml.close()
    finally:
        go_on.set()
        reader.join(20)
    assert nvml.read(UUID) == GpuReading(), "and continues when it answers"


def test_metrics_of_readings() -> None:
    found = {family.name: family for family in gpu.families({0: Nvml(everything()).read(UUID) or GpuReading()})}
    values = {name: [sample.value for sample in family.samples] for name, family in found.items()}
    assert values["hearth_gpu_energy_joules"] == [5.0] and values["hearth_gpu_healthy"] == [1]
    assert values["hearth_gpu_ecc_errors"] == [7, 1] and values["hearth_gpu_row_remap_pending"] == [1]
    assert sum(values["hearth_gpu_throttled"]) == 2 and sum(values["hearth_gpu_recovery_action"]) == 1
    assert found.keys() < gpu.NAMES and "hearth_gpu_nvlink_sent_bytes" not in found
    assert list(gpu.families({})) == []
    sick = {family.name: family for family in gpu.families({3: GpuReading(xids={79: 2})}, {3})}
    (sample,) = sick["hearth_gpu_xid_errors"].samples
    assert sample.labels == {"device": "3", "xid": "79"} and sample.value == 2
    assert [each.value for each in sick["hearth_gpu_healthy"].samples] == [0]
