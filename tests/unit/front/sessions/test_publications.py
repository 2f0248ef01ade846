"""Names of published buffers: access, attachments, and the process with which memory is counted."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from hearth_proto.reasons import Reason, Refusal
from hearthd.front.sessions.publications import (
    MAX_DESCRIPTION,
    MAX_GRANTS,
    MAX_PUBLICATIONS,
    BufferAttachment,
    Publication,
    PublicationRegistry,
)
from hearthd.front.tenancy.tenants import Right, Tenant
from hearthd.shared.published_names import MAX_NAME


class Process:
    """A stand-in for a device process."""


def published(
    registry: PublicationRegistry, name: str = "weights", *, tenant: str = "a", home: Any = None, **options: Any
) -> Publication:
    publication = registry.reserve(tenant, 0, name, home or Process(), None, **options)
    registry.confirm(publication, 64)
    return publication


def reason(call: Any, *arguments: Any, **keywords: Any) -> Refusal:
    with pytest.raises(Refusal) as refused:
        call(*arguments, **keywords)
    return refused.value


def test_name_is_taken_while_its_buffer_is_being_published() -> None:
    registry = PublicationRegistry()
    pending = registry.reserve("a", 0, "weights", Process(), None)
    assert reason(registry.reserve, "a", 0, "weights", Process(), None).reason is Reason.NAME_IN_USE
    # It cannot be attached yet either.
    assert reason(registry.find, "a", "a", 0, "weights").reason is Reason.NOT_PUBLISHED
    assert registry.attachable_by("a", 0) == []
    registry.end(pending)  # the buffer could not be published
    registry.reserve("a", 0, "weights", Process(), None)


def test_a_replacement_gets_the_name_when_it_is_confirmed() -> None:
    registry, process = PublicationRegistry(), Process()
    first = published(registry, home=process)
    attached = registry.attach(first, "s", process)
    second = registry.reserve("a", 0, "weights", process, None, replace=True, limit=1)
    assert registry.find("a", "a", 0, "weights") is first and registry.attachable_by("a", 0) == [first]
    assert registry.confirm(second, 64) is first and not first.named and not first.unused
    assert registry.find("a", "a", 0, "weights") is second and registry.attachable_by("a", 0) == [second]
    assert registry.detach(attached.number, process) is first and first.unused
    registry.end(second)
    assert registry.by_name("a", 0, "weights") is None and list(registry) == []


def test_a_replacement_that_fails_leaves_the_name() -> None:
    registry = PublicationRegistry()
    first = published(registry)
    registry.end(registry.reserve("a", 0, "weights", Process(), None, replace=True))
    assert registry.find("a", "a", 0, "weights") is first and list(registry) == [first]


def test_a_replacement_of_a_publication_that_ends_meanwhile() -> None:
    registry = PublicationRegistry()
    first = published(registry)
    second = registry.reserve("a", 0, "weights", Process(), None, replace=True)
    registry.end(first)
    pending = registry.reserve("a", 0, "weights", Process(), None)  # not confirmed: the replacement ends it
    assert reason(registry.reserve, "a", 0, "weights", Process(), None, replace=True).reason is Reason.NAME_IN_USE
    assert registry.confirm(second, 64) is pending and not pending.named
    assert registry.confirm(pending, 64) is None and registry.find("a", "a", 0, "weights") is second
    third = registry.reserve("a", 0, "weights", Process(), None, replace=True)
    registry.end(second)
    assert registry.confirm(third, 64) is None and registry.find("a", "a", 0, "weights") is third


def test_status_shows_own_and_granted_publications() -> None:
    registry = PublicationRegistry()
    own = published(registry, "x")
    shared = published(registry, "y", tenant="b", grants=["a"])
    hidden = published(registry, "z", tenant="b")
    registry.reserve("a", 0, "pending", Process(), None)
    assert registry.visible_to(Tenant("a", rights=frozenset({Right.ATTACH}))) == [own, shared]
    assert registry.visible_to(Tenant("a", rights=frozenset({Right.READ}))) == [own]
    assert registry.visible_to(Tenant("a", rights=frozenset({Right.OBSERVE}))) == [own, shared, hidden]


@pytest.mark.parametrize(
    ("description", "array"),
    [
        (b'{"dtype":"<f4","shape":[2,3]}', ([2, 3], "<f4")),
        (b'{"dtype":"<f4","shape":[true]}', None),
        (b'{"dtype":"<f4","shape":%s}' % str([1] * 65).encode(), None),
        (b'{"dtype":"%s","shape":[]}' % (b"x" * 41), None),
        (b'{"dtype":4,"shape":[]}', None),
        (b"[]", None),
        (b"\xff", None),
        (b"", None),
    ],
)
def test_description_is_read_only_if_it_describes_an_array(description: bytes, array: object) -> None:
    assert published(PublicationRegistry(), description=description).array == array


def test_names_are_a_tenants_and_a_devices_own() -> None:
    registry = PublicationRegistry()
    here = published(registry)
    theirs = published(registry, tenant="b")
    elsewhere = registry.reserve("a", 1, "weights", Process(), None)
    registry.confirm(elsewhere, 8)
    assert registry.find("a", "a", 0, "weights") is here
    assert registry.find("b", "b", 0, "weights") is theirs
    assert registry.find("a", "a", 1, "weights") is elsewhere


@pytest.mark.parametrize("name", ["", "x" * (MAX_NAME + 1), "line\nbreak", "nul\0", "tab\t", "\x7f", "\u2028"])
def test_bad_names(name: str) -> None:
    registry = PublicationRegistry()
    assert reason(registry.reserve, "a", 0, name, Process(), None).reason is Reason.INVALID_ARGUMENT
    assert reason(registry.reserve, "a", 0, "ok", Process(), None, grants=[name]).reason is Reason.INVALID_ARGUMENT
    assert list(registry) == []


@pytest.mark.parametrize("name", ["x", "x" * MAX_NAME, "Gewichte für alle", "llama/8b/layer 3", "权重"])
def test_good_names(name: str) -> None:
    assert published(PublicationRegistry(), name).name == name


def test_bounds() -> None:
    registry = PublicationRegistry()
    many = [f"tenant {number}" for number in range(MAX_GRANTS + 1)]
    assert reason(published, registry, grants=many).reason is Reason.INVALID_ARGUMENT
    too_long = reason(published, registry, description=b"x" * (MAX_DESCRIPTION + 1))
    assert too_long.reason is Reason.INVALID_ARGUMENT
    assert str(MAX_DESCRIPTION) in too_long.message
    published(registry, grants=many[1:], description=b"x" * MAX_DESCRIPTION)
    for number in range(MAX_PUBLICATIONS - 1):
        published(registry, f"n{number}")
    assert reason(published, registry, "one more").reason is Reason.QUOTA_EXCEEDED
    published(registry, "one more", tenant="b")  # the limit applies to each tenant


def test_publications_without_a_grant_are_reported_as_absent() -> None:
    registry = PublicationRegistry()
    published(registry, "theirs", tenant="b", grants=["c"])
    there = reason(registry.find, "a", "b", 0, "theirs")
    absent = reason(registry.find, "a", "b", 0, "absent")
    assert there.reason is absent.reason is Reason.NOT_PUBLISHED
    assert "gpu.published()" in absent.fix and "ListPublished" not in absent.fix
    assert there.message.replace("theirs", "absent") == absent.message
    assert there.fix == absent.fix
    assert {key: value.replace("theirs", "absent") for key, value in there.details.items()} == absent.details
    assert registry.attachable_by("a", 0) == []
    assert [one.name for one in registry.attachable_by("c", 0)] == ["theirs"]
    assert registry.find("c", "b", 0, "theirs").tenant == "b"


def test_granted_to_all() -> None:
    registry = PublicationRegistry()
    mine = published(registry, "z")
    theirs = published(registry, "y", tenant="b", grants=["*"])
    published(registry, "x", tenant="b")
    assert registry.attachable_by("a", 0) == [mine, theirs]  # the caller's own publications first
    assert registry.attachable_by("a", 1) == []


def test_name_ends_and_attachments_stay() -> None:
    registry = PublicationRegistry()
    home = Process()
    publication = published(registry, home=home)
    attachment = registry.attach(publication, "s", home)
    registry.end(publication)
    assert not publication.unused
    assert reason(registry.find, "a", "a", 0, "weights").reason is Reason.NOT_PUBLISHED
    again = published(registry)  # the next version under the same name
    assert registry.find("a", "a", 0, "weights") is again
    assert registry.detach(attachment.number, home) is publication
    assert publication.unused
    assert list(registry) == [again]


def test_attachment_is_found_by_its_handle() -> None:
    registry = PublicationRegistry()
    home, other = Process(), Process()
    publication, newer = published(registry, home=home), published(registry, "newer", home=home)
    first = registry.attach(publication, "s", home, 5)
    registry.end(publication)
    assert registry.attached("s", home, 5) is publication
    assert not any(registry.attached(*key) for key in (("t", home, 5), ("s", other, 5), ("s", home, 6)))
    second = registry.attach(newer, "s", home, 5)  # reused before the process has reported the end of the first
    registry.detach(first.number, home)
    assert registry.attached("s", home, 5) is newer
    registry.detach(second.number, home)
    assert registry.attached("s", home, 5) is None


def test_process_cannot_end_publications_of_another() -> None:
    registry = PublicationRegistry()
    home, other = Process(), Process()
    publication = published(registry, home=home)
    attachment = registry.attach(publication, "s", home)
    assert registry.detach(attachment.number, other) is None
    assert registry.end_all([publication.number], other) == []
    assert registry.process_unmapped(publication.number, other) is None
    assert publication.named
    assert publication.sessions == 1


def test_sessions_are_counted_once() -> None:
    registry = PublicationRegistry()
    publication = published(registry)
    for session in ("s", "s", "t"):
        registry.attach(publication, session, Process())
    assert publication.sessions == 2


def test_memory_counts_with_one_process_that_has_it() -> None:
    registry = PublicationRegistry()
    home, first, second = Process(), Process(), Process()
    publication = published(registry, home=home)
    local = registry.attach(publication, "local", home)
    registry.attach(publication, "one", first)
    registry.attach(publication, "two", second)
    assert publication.bearer is home
    assert registry.end_all([publication.number], home) == [publication]
    assert publication.bearer is home  # a session of that process still has it attached
    registry.detach(local.number, home)
    assert registry.process_unmapped(publication.number, home) is publication
    assert publication.bearer is first
    assert registry.process_lost(first) == [publication]
    assert publication.bearer is second
    assert registry.process_lost(second) == []
    assert list(registry) == []


def test_lost_process_takes_its_names_and_attachments() -> None:
    registry = PublicationRegistry()
    home, other = Process(), Process()
    ours, theirs = published(registry, "ours", home=home), published(registry, "theirs", home=other)
    registry.attach(ours, "s", other)
    registry.attach(theirs, "s", home)
    assert registry.process_lost(home) == [ours]
    assert ours.bearer is other
    assert not ours.named
    assert theirs.sessions == 0
    assert [one.name for one in registry.attachable_by("a", 0)] == ["theirs"]


class Model(RuleBasedStateMachine):
    """Random programs of publishers and attachers, compared with plain sets."""

    def __init__(self) -> None:
        super().__init__()
        self.registry = PublicationRegistry()
        self.processes = [Process() for _ in range(3)]
        self.named: dict[str, Publication] = {}
        self.pending: list[Publication] = []
        self.attached: dict[int, tuple[Publication, BufferAttachment]] = {}

    @rule(name=st.sampled_from("xyz"), process=st.integers(0, 2))
    def reserve(self, name: str, process: int) -> None:
        if name in self.named or any(one.name == name and one.named for one in self.pending):
            assert reason(self.registry.reserve, "a", 0, name, self.processes[process], None)
        else:
            self.pending.append(self.registry.reserve("a", 0, name, self.processes[process], None))

    @precondition(lambda self: self.pending)
    @rule(well=st.booleans())
    def confirm(self, well: bool) -> None:
        publication = self.pending.pop(0)
        if well and publication.named:
            self.registry.confirm(publication, 1)
            self.named[publication.name] = publication
        else:
            self.registry.end(publication)

    @rule(name=st.sampled_from("xyz"), process=st.integers(0, 2))
    def attach(self, name: str, process: int) -> None:
        if name not in self.named:
            assert reason(self.registry.find, "a", "a", 0, name).reason is Reason.NOT_PUBLISHED
            return
        publication = self.registry.find("a", "a", 0, name)
        assert publication is self.named[name]
        attachment = self.registry.attach(publication, f"s{process}", self.processes[process])
        self.attached[attachment.number] = publication, attachment

    @precondition(lambda self: self.attached)
    @rule(data=st.data())
    def detach(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.attached)))
        publication, attachment = self.attached.pop(number)
        assert self.registry.detach(number, attachment.process) is publication
        assert self.registry.detach(number, attachment.process) is None
        if not self.has(publication, attachment.process):
            self.registry.process_unmapped(publication.number, attachment.process)

    @precondition(lambda self: self.named)
    @rule(data=st.data())
    def unpublish(self, data: st.DataObject) -> None:
        publication = self.named.pop(data.draw(st.sampled_from(sorted(self.named))))
        self.registry.end(publication)
        if not self.has(publication, publication.home):  # its session may end as well
            self.registry.process_unmapped(publication.number, publication.home)

    @rule(process=st.integers(0, 2))
    def lose(self, process: int) -> None:
        gone = self.processes[process]
        self.registry.process_lost(gone)
        self.named = {name: one for name, one in self.named.items() if one.home is not gone}
        self.attached = {number: pair for number, pair in self.attached.items() if pair[1].process is not gone}
        self.processes[process] = Process()

    def has(self, publication: Publication, process: object) -> bool:
        return (publication.named and publication.home is process) or any(
            one is publication and attachment.process is process for one, attachment in self.attached.values()
        )

    @invariant()
    def agrees(self) -> None:
        expected = {one.number for one in self.named.values()} | {one.number for one, _ in self.attached.values()}
        expected |= {one.number for one in self.pending if one.named}
        assert {one.number for one in self.registry} == expected
        assert [one.name for one in self.registry.attachable_by("a", 0)] == sorted(self.named)
        for publication in self.registry:
            mine = [attachment.number for one, attachment in self.attached.values() if one is publication]
            assert sorted(publication.attachments) == sorted(mine)
            assert not publication.unused
            # Memory is always counted with exactly one process, which is still running.
            assert publication.bearer in self.processes
            if publication.bearer is not publication.home:
                assert self.has(publication, publication.bearer)


Model.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestModel = Model.TestCase
