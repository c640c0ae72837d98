"""The one bridge the wire tests share; never skipped under CI."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.wire.ovs import Bridge, missing


@pytest.fixture(scope="session")
def shared_bridge() -> Iterator[Bridge]:
    reason = missing()
    if reason and (os.environ.get("CI") or os.environ.get("AIFABRIC_REQUIRE_INTEGRATION")):
        pytest.fail(reason, pytrace=False)
    if reason:
        pytest.skip(reason)
    with Bridge("wt0") as bridge:
        yield bridge


@pytest.fixture
def bridge(shared_bridge: Bridge) -> Bridge:
    shared_bridge.clear()
    return shared_bridge
