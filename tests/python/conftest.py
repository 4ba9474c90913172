# SPDX-License-Identifier: Apache-2.0
import pytest
from harness import private_agent


@pytest.fixture
def agent():
    with private_agent() as directory:
        yield directory
