# SPDX-License-Identifier: Apache-2.0
import pytest
from harness import Nodes, private_agent


#: What takes longest begins first: else the others have ended by then.
LONG = ("test_torchrun", "test_in_step")


def pytest_collection_modifyitems(items):
    items.sort(key=lambda x: not any(name in x.nodeid for name in LONG))


@pytest.fixture
def agent():
    with private_agent() as directory:
        yield directory


@pytest.fixture
def nodes(tmp_path, monkeypatch):
    monkeypatch.setenv("SHARDKEEP_MEMORY", "1G")
    for i in range(2):
        (tmp_path / str(i)).mkdir()
    found = Nodes([str(tmp_path / str(i)) for i in range(2)])
    yield found
    found.end()
