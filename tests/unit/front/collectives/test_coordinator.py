"""Random sequences of events of collective operations: each operation is answered once, in one order on all devices."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from hearth_proto.reasons import Reason, Refusal, to_text
from hearthd.front.collectives.coordinator import Coordinator
from hearthd.front.collectives.match import DeviceMessage, MatchKey, RankLocation
from tests.support.front.collective_parts import present_body

SESSIONS = ("s", "t")
MEMBERS = ((0, 1), (1, 0), (2, 1, 0), (1, 2))
OVER_DAEMONS = {"group:aa": ((0, 0), (1, 0)), "group:bb": ((1, 0), (0, 1), (0, 2), (1, 1))}
"""Node and device of each rank. Node 1 of one group may differ from node 1 of another."""

Part = tuple[MatchKey, int]


class Ranks(RuleBasedStateMachine):
    """Simulates all device processes, clients and clocks."""

    def __init__(self) -> None:
        super().__init__()
        self.coordinator = Coordinator(30.0, nonce="nonce")
        self.now = 0.0
        self.generations: dict[tuple[str, int, int], int] = defaultdict(int)
        """Generations of the device processes, by group (empty: this node's), node and device."""
        self.sequences: dict[tuple[str, tuple[int, ...], int], int] = defaultdict(int)
        """The last sequence number of each rank of each group."""
        self.waiting: dict[int, tuple[Part, RankLocation]] = {}
        """Operations that were presented and not answered, by channel."""
        self.counts: dict[Part, int] = {}
        self.channels = 0
        self.requests: list[DeviceMessage] = []
        """`create_id` and `join` messages that were not answered."""
        self.running: dict[tuple[str, RankLocation], list[tuple[int, MatchKey]]] = defaultdict(list)
        """Operations whose launch was sent to each rank, by communicator."""
        self.order: dict[RankLocation, list[tuple[str, int]]] = defaultdict(list)
        """Operations whose launch was sent to each process of this node."""
        self.last: dict[tuple[str, tuple[int, ...], int], int] = {}
        """The last sequence number whose launch was sent to each rank of each group."""
        self.dead: set[tuple[str, RankLocation]] = set()

    # ---- participants ----

    def location(self, owner: str, members: tuple[int, ...], rank: int) -> RankLocation:
        if owner in OVER_DAEMONS:
            node, device = OVER_DAEMONS[owner][rank]
        else:
            node, device = 0, members[rank]
        return RankLocation(node, device, self.generations[owner if node else "", node, device])

    def take(self, sends: list[DeviceMessage]) -> None:
        """Handles messages to ranks. All ranks of an operation must receive "go" together."""
        launched: dict[MatchKey, list[int]] = defaultdict(list)
        for receiver, body in sends:
            scope = f"group:{body['group']}" if receiver.node else ""
            assert (scope, receiver) not in self.dead, "the rank has left"
            if body["op"] in ("create_id", "join"):
                self.requests.append(DeviceMessage(receiver, body))
            elif body["op"] == "abort":
                assert body["comm"] and body["reason"] and body["status"]
                self.running.pop((body["comm"], receiver), None)
            else:
                (key, rank), location = self.waiting.pop(body["channel"])  # raises if the operation was answered before
                assert location == receiver and body["sequence"] == key.sequence
                assert body["group"] == key.group and body["devices"] == ([] if key.group else list(key.members))
                if body["op"] == "go":
                    assert body["rank"] == rank and body["ranks"] == len(key.members)
                    launched[key].append(rank)
                    last = self.last.get((key.owner, key.members, rank), 0)
                    assert last < key.sequence, "a rank's operations of one group run in their order"
                    self.last[key.owner, key.members, rank] = key.sequence
                    self.running[body["comm"], receiver].append((body["index"], key))
                    if not receiver.node:
                        self.order[receiver].append((body["comm"], body["index"]))
                else:
                    assert body["op"] == "fail" and body["status"]
        for key, ranks in launched.items():
            assert sorted(ranks) == list(range(len(key.members))), "all ranks or none"
            assert len({self.counts[key, rank] for rank in ranks}) == 1, "mismatched operations are not launched"

    # ---- events ----

    @rule(
        owner=st.sampled_from((*SESSIONS, *OVER_DAEMONS)),
        members=st.sampled_from(MEMBERS),
        ranks=st.permutations(range(4)) | st.lists(st.integers(0, 3), min_size=1, max_size=4, unique=True),
        counts=st.just((8, 8, 8, 8)) | st.permutations((8, 8, 8, 9)),
        timeout=st.sampled_from((1.0, 3.0, 10.0)),
    )
    def present(
        self, owner: str, members: tuple[int, ...], ranks: list[int], counts: list[int], timeout: float
    ) -> None:
        """Some ranks, in any order, present their next operation."""
        if owner in OVER_DAEMONS:
            members = tuple(range(len(OVER_DAEMONS[owner])))
        for rank in ranks:
            if rank >= len(members):
                continue
            self.sequences[owner, members, rank] += 1
            self.channels += 1
            key = MatchKey(owner, members, self.sequences[owner, members, rank])
            location = self.location(owner, members, rank)
            self.waiting[self.channels] = (key, rank), location
            self.counts[key, rank] = counts[rank]
            body = present_body(self.channels, timeout, count=counts[rank])
            self.take(self.coordinator.present(key, rank, location, body, self.now))

    @precondition(lambda self: self.requests)
    @rule(choice=st.integers(0, 1000), is_successful=st.sampled_from((True, True, True, True, False)))
    def answer(self, choice: int, is_successful: bool) -> None:
        """A process has created an id or has joined, or failed to."""
        location, request = self.requests.pop(choice % len(self.requests))
        if (f"group:{request['group']}" if location.node else "", location) in self.dead:
            return
        body: dict[str, Any] = {"comm": request["comm"]}
        if not is_successful:
            body |= {"op": "join_failed", "status": to_text(Refusal(Reason.INTERNAL, "no"))}
        elif request["op"] == "create_id":
            body |= {"op": "id", "unique_id": "u"}
        else:
            assert request["unique_id"] == "u"
            body |= {"op": "joined"}
        owner = f"group:{request['group']}" if request["group"] else ""
        self.take(self.coordinator.on_message(location, body, owner))

    @rule()
    def settle(self) -> None:
        """Answers all requests to processes."""
        while self.requests:
            self.answer(0, True)

    @precondition(lambda self: self.running)
    @rule(choice=st.integers(0, 1000), outcome=st.sampled_from(("progress", "progress", "failed", "timed out")))
    def run(self, choice: int, outcome: str) -> None:
        """A rank finishes operations, or fails."""
        comm, location = list(self.running)[choice % len(self.running)]
        index, key = self.running[comm, location][choice % len(self.running[comm, location])]
        body = {
            "progress": {"op": "progress", "done": index},
            "failed": {"op": "failed", "reason": "boom", "sequence": key.sequence},
            "timed out": {"op": "failed", "reason": "slow", "timed_out": True, "sequence": key.sequence},
        }[outcome]
        self.take(self.coordinator.on_message(location, {"comm": comm, **body}, key.scope))
        assert outcome == "progress" or (comm, location) not in self.running, (
            "a rank that failed receives the abort too"
        )

    @rule(
        kind=st.sampled_from(("process", "far process", "node", "owner", "owner")),
        device=st.integers(0, 2),
        group=st.sampled_from(sorted(OVER_DAEMONS)),
        owner=st.sampled_from((*SESSIONS, *OVER_DAEMONS)),
    )
    def lose(self, kind: str, device: int, group: str, owner: str) -> None:
        """Loses a process, a node or a session."""
        if kind == "process":
            self.lose_here(device)
        elif kind == "far process":
            self.lose_far(group, device % 2)
        elif kind == "node":
            self.lose_node(group)
        else:
            self.close(owner)

    def lose_here(self, device: int) -> None:
        """Ends a device process of this node."""
        self.die("", RankLocation(0, device, self.generations["", 0, device]), list(SESSIONS))
        for group, ranks in OVER_DAEMONS.items():  # like the caller that knows the groups
            if (0, device) in ranks:
                self.take(
                    self.coordinator.on_loss(RankLocation(0, device, self.generations["", 0, device]), "boom", [group])
                )
        self.generations["", 0, device] += 1

    def lose_far(self, group: str, device: int) -> None:
        """Ends a device process of another node of a group."""
        self.die(group, RankLocation(1, device, self.generations[group, 1, device]), [group])
        self.generations[group, 1, device] += 1

    def lose_node(self, group: str) -> None:
        """Breaks the connection to another node of a group."""
        for device in (0, 1):
            self.bury(group, RankLocation(1, device, self.generations[group, 1, device]))
            self.generations[group, 1, device] += 1
        self.take(self.coordinator.on_loss(1, "broken", [group]))

    def die(self, scope: str, location: RankLocation, owners: list[str]) -> None:
        self.bury(scope, location)
        self.take(self.coordinator.on_loss(location, "boom", owners))

    def bury(self, scope: str, location: RankLocation) -> None:
        """Removes the operations that a lost process had presented."""
        self.dead.add((scope, location))
        for channel, ((key, _), at) in list(self.waiting.items()):
            if at == location and scope in ("", key.owner):
                del self.waiting[channel]
        for comm, at in list(self.running):
            scopes = {key.scope for _, key in self.running[comm, at]}
            if at == location and (not scope or scopes == {scope}):
                del self.running[comm, at]

    def close(self, owner: str) -> None:
        """Ends a session or leaves a group. Another one with the same name begins."""
        self.take(self.coordinator.end_owner(owner, Refusal(Reason.SESSION_EXPIRED, "over")))
        for group in [group for group in self.sequences if group[0] == owner]:
            del self.sequences[group]
            self.last.pop(group, None)
        self.counts = {
            presentation: count for presentation, count in self.counts.items() if presentation[0].owner != owner
        }
        assert not [key for (key, _), _ in self.waiting.values() if key.owner == owner]
        self.nothing_left(owner)

    @rule(seconds=st.sampled_from((0.5, 1.0, 2.0, 20.0)))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.take(self.coordinator.expire(self.now))
        deadline = self.coordinator.deadline
        assert deadline is None or deadline > self.now

    # ---- invariants ----

    @invariant()
    def one_order(self) -> None:
        """Any two processes of the node receive the operations that they share in the same order, and the indices of
        each communicator are consecutive."""
        locations = list(self.order)
        for first in locations:
            for second in locations[: locations.index(first)]:
                of_second, of_first = set(self.order[second]), set(self.order[first])
                assert [x for x in self.order[first] if x in of_second] == [
                    x for x in self.order[second] if x in of_first
                ]
            by_comm: dict[str, list[int]] = defaultdict(list)
            for comm, index in self.order[first]:
                by_comm[comm].append(index)
            assert all(indices == list(range(1, len(indices) + 1)) for indices in by_comm.values())

    def nothing_left(self, owner: str) -> None:
        coordinator = self.coordinator
        matcher = coordinator.matcher
        assert not [key for key in matcher.pending if key.owner == owner]
        assert owner not in matcher.failures and not list(coordinator.recorder.histories(owner))
        for comm in coordinator.communicators:
            assert comm.key.scope != owner
            assert owner not in {user for user, _ in comm.users} | {key.owner for _, key in comm.in_flight}
            assert owner not in {match.key.owner for match in comm.queue}

    def teardown(self) -> None:
        self.wait(60.0)
        assert not self.waiting, "every message was answered"
        for owner in (*SESSIONS, *OVER_DAEMONS):
            self.close(owner)
        assert len(self.coordinator.matcher) == 0 and len(self.coordinator.recorder) == 0
        assert self.coordinator.deadline is None


Ranks.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestRanks = Ranks.TestCase
