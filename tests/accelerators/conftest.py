"""The devices that every test of this folder runs on."""

from collections.abc import Iterator

import pytest
import torch

from tests.accelerators.devices import DEVICES, switched_on


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    with switched_on(request.param) as there:
        yield there
