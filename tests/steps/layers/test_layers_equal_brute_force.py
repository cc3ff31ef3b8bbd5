"""Every layer against evaluating its plain twin everywhere, and against `pseudogradient` of the twin."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import stepgrad as sg
from tests.oracles.steps import pseudo_jacobian
from tests.scenes import over_seeds
from tests.steps.layers.layer_cases import MAKERS, jacobian, options, random_case

every_layer = pytest.mark.parametrize("name", MAKERS)


@every_layer
@over_seeds(10, 100)
def test_values_and_jacobian_equal_brute_force(seed: int, name: str) -> None:
    rng = np.random.default_rng([seed, 70])
    for _ in range(50):
        case, x, how = random_case(name, rng)
        leaf = torch.tensor(x, dtype=torch.float64)
        assert case.layer(leaf).tolist() == case.twin(x)
        expected = torch.tensor(pseudo_jacobian(case.twin, x, case.breakpoints, how), dtype=torch.float64)
        torch.testing.assert_close(jacobian(case.layer, x), expected, rtol=0, atol=1e-12)


@every_layer
@over_seeds(4, 40)
def test_jacobian_is_the_pseudogradient_of_the_plain_function(seed: int, name: str) -> None:
    rng = np.random.default_rng([seed, 71])
    for _ in range(10):
        case, x, how = random_case(name, rng)
        found = sg.pseudogradient(case.of_array, torch.tensor(x), candidates=case.breakpoints, **options(how))
        torch.testing.assert_close(jacobian(case.layer, x), found.double(), rtol=1e-6, atol=1e-6)


@every_layer
@over_seeds(2, 20)
def test_jacobian_is_the_pseudogradient_found_by_search(seed: int, name: str) -> None:
    """Rows without ties, since a search only comes within the tolerance of a distance of zero."""
    rng = np.random.default_rng([seed, 72])
    tried = 0
    while tried < 5:
        case, x, how = random_case(name, rng)
        if len(set(x)) < len(x) or any(v in places for v, places in zip(x, case.breakpoints, strict=True)):
            continue
        tried += 1
        found = sg.pseudogradient(case.of_array, np.array(x), search_range=50.0, growth=1.05, **options(how))
        np.testing.assert_allclose(jacobian(case.layer, x).numpy(), found, rtol=0, atol=1e-6)
