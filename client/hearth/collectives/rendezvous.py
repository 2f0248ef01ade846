"""Groups over several daemons: the first daemon makes a ticket, and the others join with it.

All daemons are notified at the end of the group. Every call has a deadline, so that an unreachable daemon delays no
caller for long; each call runs in a separate thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from hearth.errors import HearthError, TimeoutError
from hearth_proto.v1 import node_pb2

if TYPE_CHECKING:
    from hearth.session.lease import NodeSession

SLACK_S = 2.0
"""Seconds added to a daemon's own time limit to get the deadline of a call to it."""
LEAVE_S = 2.0


class FormedGroup:
    """A group over several daemons: its id, and its sessions, beginning with the coordinator's."""

    def __init__(self, id: bytes, sessions: Sequence[NodeSession]) -> None:
        self.id = id
        self.sessions = tuple(sessions)
        self.has_left = False
        """True once the group has been left."""

    @property
    def coordinator(self) -> NodeSession:
        """The session of the first rank, whose daemon coordinates the group."""
        return self.sessions[0]

    def leave(self, lost: Collection[NodeSession] = ()) -> None:
        """Leaves the group at all daemons that answer.

        Blocks for `LEAVE_S` seconds at most. A second call does nothing.

        Args:
            lost: Sessions whose daemons may be unreachable, and are not waited for.
        """
        if self.has_left:
            return
        self.has_left = True
        threads = {session: start_thread(partial(_leave, session, self.id)) for session in self.sessions}
        join_within(LEAVE_S, [thread for session, thread in threads.items() if session not in lost])


def form(members: Sequence[tuple[NodeSession, int]], timeout: float, slack: float = SLACK_S) -> FormedGroup:
    """Forms a group over several daemons. Blocks. If it fails, the daemons that have joined leave the group again.

    Args:
        members: (session, ordinal of the device) of each rank.
        timeout: Seconds for forming the group.
        slack: Seconds by which the deadline of a call to a daemon exceeds `timeout`, the daemon's own limit.

    Returns:
        The group.

    Raises:
        TimeoutError: The group is not formed in time.
        HearthError: The error of a daemon, with ``details["node"]`` and ``details["target"]``.
    """
    sessions = list(dict.fromkeys(session for session, _ in members))
    listed = [node_pb2.GroupMember(node=sessions.index(session), device=ordinal) for session, ordinal in members]
    deadline = time.monotonic() + timeout
    coordinator = sessions[0]
    try:
        created = coordinator.call(
            "CreateGroup",
            node_pb2.CreateGroupRequest(session_token=coordinator.token, members=listed, timeout_ns=int(timeout * 1e9)),
            node_pb2.CreateGroupResponse,
            timeout + slack,
        )
    except HearthError as error:
        raise _with_node(coordinator, error) from None
    formed = FormedGroup(created.group, sessions)
    answers: SimpleQueue[HearthError | None] = SimpleQueue()
    for node, session in enumerate(sessions[1:], 1):
        request = node_pb2.JoinGroupRequest(
            session_token=session.token,
            group=created.group,
            node=node,
            members=listed,
            ticket=created.ticket,
            timeout_ns=max(1, int((deadline - time.monotonic()) * 1e9)),
        )
        start_thread(partial(_join, formed, session, request, timeout + slack, answers.put))
    try:
        for _ in sessions[1:]:
            refusal = _next_answer(answers, deadline + 2 * slack, timeout)
            if refusal is not None:
                raise refusal
    except BaseException:  # including KeyboardInterrupt
        formed.leave()
        raise
    return formed


def describe(session: NodeSession) -> Sequence[node_pb2.GroupInfo]:
    """Returns the session's groups on its daemon, with their last operations. Blocks for one request."""
    request = node_pb2.DescribeGroupsRequest(session_token=session.token)
    answer: node_pb2.DescribeGroupsResponse = session.call("DescribeGroups", request, node_pb2.DescribeGroupsResponse)
    return answer.groups


def _join(
    formed: FormedGroup,
    session: NodeSession,
    request: node_pb2.JoinGroupRequest,
    timeout: float,
    answer: Callable[[HearthError | None], None],
) -> None:
    try:
        session.call("JoinGroup", request, node_pb2.JoinGroupResponse, timeout)
    except HearthError as error:
        answer(_with_node(session, error))
        return
    if formed.has_left:  # another node refused meanwhile, and no other call will leave this group
        _leave(session, formed.id)
    answer(None)


def _next_answer(answers: SimpleQueue[HearthError | None], deadline: float, timeout: float) -> HearthError | None:
    try:
        return answers.get(timeout=max(0.0, deadline - time.monotonic()))
    except Empty:
        return TimeoutError(
            f"the daemons of the group did not connect to each other within {timeout:g} s.",
            fix="check that they can reach the first device's daemon, or pass Group a longer timeout.",
        )


def _leave(session: NodeSession, group: bytes) -> None:
    request = node_pb2.LeaveGroupRequest(session_token=session.token, group=group)
    with suppress(HearthError):  # the daemon is unreachable, or has ended the group itself
        session.call("LeaveGroup", request, node_pb2.LeaveGroupResponse, LEAVE_S)


def _with_node(session: NodeSession, error: HearthError) -> HearthError:
    """Returns a copy of the error that names the node at which it occurred."""
    copy = error.again()
    copy.message = f"{copy.message} (at {session.transport.target})"
    copy.details.setdefault("node", session.opened.node)
    copy.details.setdefault("target", session.transport.target)
    return copy


def start_thread(work: Callable[[], None]) -> threading.Thread:
    """Starts a thread that does something for a group in the background, and returns it."""
    thread = threading.Thread(target=work, name="hearth-group", daemon=True)
    thread.start()
    return thread


def join_within(seconds: float, threads: Iterable[threading.Thread]) -> None:
    """Waits for threads, for `seconds` at most in total; they continue after that."""
    deadline = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
