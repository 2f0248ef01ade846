"""Objects of every kind in a session, under the handles that fuzzed messages use, so that these messages refer to
existing objects."""

from __future__ import annotations

from hearth_proto.v1 import commands_pb2 as c
from tests.fuzz.messages import NOTHING
from tests.fuzz.templates import ARGUMENTS, DIM, ELSE, LARGE, ONE, SIDE, SMALL

BUILT = 999
"""Request number of the last command, which is the only one with an answer."""

_PARTS = [c.Allocate.Part(buffer=LARGE, size=4096), c.Allocate.Part(buffer=ELSE, size=16)]
FURNITURE = (
    c.Command(allocate=c.Allocate(buffer=SMALL, size=16)),
    c.Command(allocate=c.Allocate(parts=_PARTS)),
    c.Command(create_stream=c.CreateStream(stream=SIDE)),
    c.Command(create_stream=c.CreateStream(stream=ELSE)),
    c.Command(record_event=c.RecordEvent(event=SMALL)),
    c.Command(load_module=c.LoadModule(module=SMALL, kind=c.CODE_KIND_CUDA_CPP, code=NOTHING.encode())),
    c.Command(get_function=c.GetFunction(function=SMALL, module=SMALL, name="nothing")),
    c.Command(get_global=c.GetGlobal(buffer=SIDE, module=SMALL, name="variable")),
    c.Command(start_profile=c.StartProfile(profile=SMALL)),
    c.Command(launch=c.Launch(function=SMALL, grid=DIM, block=DIM, arguments=ARGUMENTS)),
    c.Command(prepare=c.Prepare(prepared=SMALL, launches=ONE)),
    c.Command(stream=ELSE, begin_capture=c.BeginCapture(graph=SMALL)),
    c.Command(stream=ELSE, launches=ONE),
    c.Command(stream=ELSE, fill=c.Fill(buffer=ELSE, size=16, pattern=b"x")),
    c.Command(request=BUILT, stream=ELSE, end_capture=c.EndCapture(graph=SMALL)),
)
