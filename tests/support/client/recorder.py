"""A session protocol whose transport records the messages that are sent."""

from __future__ import annotations

import hearth
from hearth.session.protocol import Session
from hearth_proto import reasons
from hearth_proto.v1 import commands_pb2, device_pb2


class Recorder:
    """A reply that counts its completions."""

    def __init__(self, reports: bool = False) -> None:
        self.reports = reports
        self.abandoned = False
        self.outcomes: list[object] = []

    def set_result(self, result: commands_pb2.Result) -> None:
        self.outcomes.append(result)

    def set_error(self, error: hearth.HearthError) -> None:
        self.outcomes.append(error)


def attached(session: Session, **fields: int) -> Session:
    answer = device_pb2.Attached(generation=1, **fields)
    session.receive(device_pb2.ExecuteResponse(attached=answer))
    return session


def result(request: int, error: reasons.Refusal | None = None) -> device_pb2.ExecuteResponse:
    response = device_pb2.ExecuteResponse(result=commands_pb2.Result(request=request))
    if error is not None:
        response.result.error.CopyFrom(error.to_status())
    return response
