"""Counted commands: consecutive ones of the same kind are merged into one, and the order of all others is kept."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hearth.session.protocol import Session
from hearth.session.send_queue import COUNT_MAX, QUEUE_COMMANDS
from hearth.session.send_queue import Limits as SessionLimits
from hearth_proto.v1 import commands_pb2, device_pb2


def attached() -> Session:
    session = Session(SessionLimits())
    session.receive(device_pb2.ExecuteResponse(attached=device_pb2.Attached(generation=1)))
    return session


def launch_of(graph: int, n: int) -> bytes:
    launch = commands_pb2.LaunchGraph(graph=graph, count=n)
    return commands_pb2.Command(launch_graph=launch).SerializeToString()


def fill(number: int) -> bytes:
    return commands_pb2.Command(fill=commands_pb2.Fill(buffer=number)).SerializeToString()


def sent(session: Session) -> list[tuple[str, int]]:
    """Returns the steps of the next batch, with counted graph launches expanded."""
    batch = session.next_request()
    if batch is None:
        return []
    steps: list[tuple[str, int]] = []
    for command in device_pb2.ExecuteRequest.FromString(batch).batch.commands:
        kind = command.WhichOneof("kind")
        if kind == "launch_graph":
            steps += [("graph", command.launch_graph.graph)] * command.launch_graph.count
        elif kind == "launches":
            steps += [("kernel", byte) for byte in command.launches]
        else:
            steps.append(("fill", command.fill.buffer))
    return steps


steps = st.lists(
    st.one_of(
        st.tuples(st.just("graph"), st.integers(1, 3), st.integers(1, 4)),
        st.tuples(st.just("kernel"), st.integers(0, 255), st.just(1)),
        st.tuples(st.just("fill"), st.integers(1, 3), st.just(1)),
        st.tuples(st.just("send"), st.just(0), st.just(1)),
    ),
    max_size=40,
)


@given(steps)
def test_the_order_and_the_number_of_steps_stay(program: list[tuple[str, int, int]]) -> None:
    session = attached()
    expected: list[tuple[str, int]] = []
    found: list[tuple[str, int]] = []
    for what, number, n in program:
        if what == "send":
            found += sent(session)
            session.receive(device_pb2.ExecuteResponse(ack=device_pb2.Ack(seq=session.next_seq - 1)))
            continue
        if what == "graph":
            session.queue.count_up(("graph", number), n, lambda n, graph=number: launch_of(graph, n))  # type: ignore[misc]
        elif what == "kernel":
            session.queue.launch(bytes([number]))
        else:
            session.add(fill(number))
        expected += [(what, number)] * n
    while session.queue.queued:
        found += sent(session)
    assert found == expected
    assert session.queue.queued == session.queue.queued_bytes == 0
    assert session.queue.submitted == sum(what != "send" for what, _, _ in program)


def test_consecutive_counts_are_merged_into_one_command() -> None:
    session = attached()
    for _ in range(1000):
        session.queue.count_up("a", 3, lambda n: launch_of(1, n))
    session.queue.count_up("b", 1, lambda n: launch_of(2, n))
    assert session.queue.queued == 1001
    commands = device_pb2.ExecuteRequest.FromString(session.next_request() or b"").batch.commands
    assert [(each.launch_graph.graph, each.launch_graph.count) for each in commands] == [(1, 3000), (2, 1)]
    session.queue.count_up("b", 1, lambda n: launch_of(2, n))  # not merged, because the previous command has been sent
    assert len(sent(session)) == 1


def test_counting_up_keeps_the_queue_s_bound_and_the_count_s() -> None:
    session = attached()
    while not session.queue.full:
        session.queue.count_up("a", 1, lambda n: launch_of(1, n))
    assert session.queue.queued == QUEUE_COMMANDS
    session = attached()
    session.queue.count_up("a", COUNT_MAX, lambda n: launch_of(1, n))
    session.queue.count_up("a", 1, lambda n: launch_of(1, n))
    commands = device_pb2.ExecuteRequest.FromString(session.next_request() or b"").batch.commands
    assert [each.launch_graph.count for each in commands] == [COUNT_MAX, 1]
