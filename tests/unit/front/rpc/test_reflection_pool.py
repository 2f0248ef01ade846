"""The descriptors that server reflection serves."""

from __future__ import annotations

from google.protobuf import descriptor_pool
from google.protobuf.descriptor import Descriptor
from google.protobuf.descriptor_pb2 import DescriptorProto
from google.protobuf.json_format import MessageToDict
from google.protobuf.message_factory import GetMessageClass
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from hearth_proto.reasons import Reason, Refusal
from hearth_proto.v1 import device_pb2, node_pb2
from hearthd.front.rpc.reflection_pool import build_pool

SERVICES = ("hearth.v1.NodeService", "hearth.v1.DeviceService", "grpc.health.v1.Health")
GENERATED = (node_pb2, device_pb2, health_pb2)


def test_details_of_an_error_are_decoded_by_their_google_names() -> None:
    """googleapis-common-protos, which defines the same names, is loaded in this process."""
    pool = build_pool(SERVICES)
    refusal = Refusal(
        Reason.LAUNCH_INVALID, "no", fix="change it", details={"grid": 0}, retry_after_s=1.5, fields=["grid.x"]
    )
    wire = GetMessageClass(pool.FindMessageTypeByName("google.rpc.Status")).FromString(
        refusal.to_status().SerializeToString()
    )
    assert MessageToDict(wire, descriptor_pool=pool) == {
        "code": 3,
        "message": "no",
        "details": [
            {
                "@type": "type.googleapis.com/google.rpc.ErrorInfo",
                "reason": "LAUNCH_INVALID",
                "domain": "hearth.v1",
                "metadata": {"grid": "0", "fix": "change it"},
            },
            {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "1.500s"},
            {
                "@type": "type.googleapis.com/google.rpc.BadRequest",
                "fieldViolations": [{"field": "grid.x", "description": "no"}],
            },
        ],
    }


def test_google_names_have_googles_fields() -> None:
    pool = build_pool(SERVICES)
    for name in ("ErrorInfo", "RetryInfo", "BadRequest", "BadRequest.FieldViolation"):
        real = descriptor_pool.Default().FindMessageTypeByName(f"google.rpc.{name}")
        assert real.file is error_details_pb2.DESCRIPTOR
        agree(pool.FindMessageTypeByName(f"google.rpc.{name}"), real)
    agree(pool.FindMessageTypeByName("google.rpc.Status"), status_pb2.Status.DESCRIPTOR)


def test_versions_of_reflection_differ_in_the_package_only() -> None:
    pool = build_pool(SERVICES)
    method = pool.FindServiceByName("grpc.reflection.v1.ServerReflection").FindMethodByName("ServerReflectionInfo")
    assert method.client_streaming and method.server_streaming
    assert method.input_type.full_name == "grpc.reflection.v1.ServerReflectionRequest"
    assert method.output_type.full_name == "grpc.reflection.v1.ServerReflectionResponse"
    agree(method.input_type, reflection_pb2.ServerReflectionRequest.DESCRIPTOR)
    agree(method.output_type, reflection_pb2.ServerReflectionResponse.DESCRIPTOR)
    assert pool.FindServiceByName("grpc.reflection.v1alpha.ServerReflection")


def test_every_field_has_its_json_name() -> None:
    pool = build_pool(SERVICES)
    for generated in GENERATED:
        for service in generated.DESCRIPTOR.services_by_name:
            served = pool.FindServiceByName(f"{generated.DESCRIPTOR.package}.{service}")
            for method in served.methods:
                for message in (method.input_type, method.output_type):
                    real = descriptor_pool.Default().FindMessageTypeByName(message.full_name)
                    agree(message, real)
    names = pool.FindMessageTypeByName("hearth.v1.OpenSessionResponse").fields_by_name
    assert (names["session_token"].json_name, names["lease_ns"].json_name) == ("sessionToken", "leaseNs")


def agree(served: Descriptor, real: Descriptor, seen: set[str] | None = None) -> None:
    """Checks that all fields of a served message are those of `real`."""
    seen = set() if seen is None else seen
    if served.full_name in seen:
        return
    seen.add(served.full_name)
    copy = DescriptorProto()
    served.CopyToProto(copy)
    assert all(field.HasField("json_name") for field in copy.field), (
        "protobuf computes the name if it is missing, other tools may not"
    )
    for field in served.fields:
        other = real.fields_by_name[field.name]
        assert (field.number, field.type, field.json_name) == (other.number, other.type, other.json_name), field.name
        if field.message_type is not None:
            agree(field.message_type, other.message_type, seen)
