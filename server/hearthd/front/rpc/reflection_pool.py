"""The descriptors that server reflection serves: the daemon's services, and the details of its errors.

The pool is separate from protobuf's default pool for two reasons. It defines the details of errors under the names
`google.rpc.Status`, `ErrorInfo`, `RetryInfo` and `BadRequest`, which an installed googleapis-common-protos defines in
the default pool. It also gives each field its JSON name, which the descriptors in generated Python code lack. Without a
JSON name, some tools print the name in the .proto file, and not that of the proto3 JSON mapping (lowerCamelCase).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from google.protobuf import any_pb2, descriptor_pool, duration_pb2
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool

from hearth_proto.v1 import status_pb2

_REFLECTION = "grpc.reflection.v1alpha.ServerReflection"
_ERROR_DETAILS = ("ErrorInfo", "RetryInfo", "BadRequest")


def build_pool(services: Iterable[str]) -> DescriptorPool:
    """Returns a pool with the files of `services`, both versions of reflection, and the details of errors.

    The generated code of `services` and of version v1alpha of reflection must be imported before.
    """
    generated = descriptor_pool.Default()
    pool = DescriptorPool()
    added: set[str] = set()

    def add(file: FileDescriptorProto) -> None:
        for dependency in file.dependency:
            add_generated(dependency)
        if file.name not in added:
            added.add(file.name)
            for message in file.message_type:
                _set_json_names(message)
            pool.AddSerializedFile(file.SerializeToString())

    def add_generated(name: str) -> None:
        if name not in added:
            add(_proto_of(generated.FindFileByName(name)))

    for service in (*services, _REFLECTION):
        add_generated(generated.FindFileContainingSymbol(service).name)
    alpha = _proto_of(generated.FindFileContainingSymbol(_REFLECTION))
    add(_copy_renamed(alpha, "grpc/reflection/v1/reflection.proto", "grpc.reflection.v1", alpha.dependency))
    status_file = _proto_of(status_pb2.DESCRIPTOR)
    dependencies = [any_pb2.DESCRIPTOR.name]
    add(_copy_renamed(status_file, "google/rpc/status.proto", "google.rpc", dependencies, ["Status"]))
    dependencies = [duration_pb2.DESCRIPTOR.name]
    add(_copy_renamed(status_file, "google/rpc/error_details.proto", "google.rpc", dependencies, _ERROR_DETAILS))
    return pool


def _proto_of(file: Any) -> FileDescriptorProto:
    return FileDescriptorProto.FromString(file.serialized_pb)


def _copy_renamed(
    source: FileDescriptorProto,
    name: str,
    package: str,
    dependencies: Iterable[str],
    messages: Collection[str] | None = None,
) -> FileDescriptorProto:
    """Returns a copy of a file under another name and package, which depends on the files `dependencies`.

    `messages`: the names of the messages that are copied; None: all.
    """
    copy = FileDescriptorProto(name=name, package=package, syntax=source.syntax, dependency=dependencies)
    old_prefix, new_prefix = f".{source.package}.", f".{package}."
    copy.message_type.extend(message for message in source.message_type if messages is None or message.name in messages)
    if messages is None:
        copy.service.extend(source.service)
    for message in copy.message_type:
        _rename_types(message, old_prefix, new_prefix)
    for service in copy.service:
        for method in service.method:
            method.input_type = method.input_type.replace(old_prefix, new_prefix, 1)
            method.output_type = method.output_type.replace(old_prefix, new_prefix, 1)
    return copy


def _rename_types(message: DescriptorProto, old_prefix: str, new_prefix: str) -> None:
    for field in message.field:
        if field.type_name.startswith(old_prefix):
            field.type_name = new_prefix + field.type_name.removeprefix(old_prefix)
    for nested in message.nested_type:
        _rename_types(nested, old_prefix, new_prefix)


def _set_json_names(message: DescriptorProto) -> None:
    """Sets the JSON names of the fields of `message` and of the messages nested in it."""
    for field in message.field:
        first, *following = field.name.split("_")
        field.json_name = first + "".join(word[:1].upper() + word[1:] for word in following)
    for nested in message.nested_type:
        _set_json_names(nested)
