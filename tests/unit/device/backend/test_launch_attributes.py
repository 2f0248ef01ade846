"""Attributes of launches against the device's features and limits."""

from __future__ import annotations

import dataclasses

import pytest

from hearth_proto.launches import AccessWindow, Attributes
from hearth_proto.reasons import Reason, Refusal
from hearthd.device.backend.launch_attributes import check, features
from hearthd.device.backend.launch_limits import LaunchLimits

LIMITS = LaunchLimits(
    1024, (1024, 1024, 64), (2**31 - 1, 65535, 65535), 227 << 10,
    features=frozenset(features(9)), max_access_window=1 << 20,
)  # fmt: skip
WINDOW = AccessWindow(1, 0, 1 << 20, 0.5, 2, 1)
ALL = Attributes(True, -3, 1, WINDOW)


def refused(limits: LaunchLimits, attributes: Attributes) -> Refusal:
    with pytest.raises(Refusal) as caught:
        check(limits, "k", attributes)
    assert caught.value.fix and "launch of k" in caught.value.message
    return caught.value


def test_attributes_that_a_device_has_are_accepted() -> None:
    check(LIMITS, "k", ALL)
    check(dataclasses.replace(LIMITS, features=frozenset()), "k", Attributes(priority=-100))
    check(LIMITS, "k", Attributes(window=WINDOW._replace(size=1, hit_ratio=0.0, hit=0, miss=0)))


@pytest.mark.parametrize(
    ("attributes", "feature", "words"),
    [
        (Attributes(programmatic=True), "programmatic_launch", "programmatic dependent launch, which need .* 9.0"),
        (Attributes(mem_sync_domain=1), "memory_sync_domains", "memory-sync domains, which need .* 9.0"),
    ],
)
def test_attributes_of_later_devices(attributes: Attributes, feature: str, words: str) -> None:
    ampere = dataclasses.replace(LIMITS, features=frozenset(features(8)))
    check(ampere, "k", Attributes(window=WINDOW))
    refusal = refused(ampere, attributes)
    assert refusal.reason is Reason.UNSUPPORTED and refusal.details["feature"] == feature
    assert feature in refusal.fix
    with pytest.raises(Refusal, match=words):
        check(ampere, "k", attributes)


def test_all_missing_features_are_named() -> None:
    refusal = refused(dataclasses.replace(LIMITS, features=frozenset(features(7))), ALL)
    assert refusal.details["feature"] == "access_policy_window, memory_sync_domains, programmatic_launch"
    assert refusal.message.count("compute capability") == 3


@pytest.mark.parametrize(
    ("window", "words"),
    [
        (WINDOW._replace(size=(1 << 20) + 1), "1048577 bytes; it must have from 1 to 1048576"),
        (WINDOW._replace(size=0), "has 0 bytes"),
        (WINDOW._replace(hit_ratio=1.5), "hit ratio of the access-policy window is 1.5"),
        (WINDOW._replace(hit_ratio=float("nan")), "hit ratio of the access-policy window is nan"),
        (WINDOW._replace(hit=3), "access property 3 is unknown"),
        (WINDOW._replace(miss=2), "of misses is unknown or persisting"),
    ],
)
def test_invalid_windows(window: AccessWindow, words: str) -> None:
    refusal = refused(LIMITS, Attributes(window=window))
    assert refusal.reason is Reason.LAUNCH_INVALID and words in refusal.message


def test_unknown_domains_and_all_errors_together() -> None:
    refusal = refused(LIMITS, Attributes(mem_sync_domain=2, window=WINDOW._replace(size=0, hit=9)))
    assert refusal.details["failures"] == "3" and "memory-sync domain 2 is unknown" in refusal.message
