"""Every form of balance gives the gradient the invariance it promises, and invents no gradient where there is none."""

import pytest
import torch
from torch import Tensor

from experiments.balance_forms import FORMS

BALANCED = [name for name in FORMS if name != "none"]
SCALE_FREE = ["project", "class+scale"]


def _case(seed: int) -> tuple[Tensor, Tensor]:
    """A lopsided gradient with gaps, and scores."""
    generator = torch.Generator().manual_seed(seed)
    gradient = torch.randn(60, 4, generator=generator, dtype=torch.float64) - 0.8
    gradient[torch.rand(60, 4, generator=generator) < 0.4] = 0
    return gradient, torch.randn(60, 4, generator=generator, dtype=torch.float64) + 2


@pytest.mark.parametrize("name", BALANCED)
@pytest.mark.parametrize("seed", range(5))
def test_pushes_up_and_down_weigh_the_same(name: str, seed: int) -> None:
    gradient, scores = _case(seed)
    assert FORMS[name](gradient, scores).sum(0).abs().max() < 1e-12


@pytest.mark.parametrize("name", SCALE_FREE)
@pytest.mark.parametrize("seed", range(5))
def test_nothing_is_left_along_the_scores(name: str, seed: int) -> None:
    gradient, scores = _case(seed)
    assert (FORMS[name](gradient, scores) * scores).sum(0).abs().max() < 1e-12


@pytest.mark.parametrize("name", list(FORMS))
def test_windows_without_gradient_get_none(name: str) -> None:
    gradient, scores = _case(0)
    assert torch.all(FORMS[name](gradient, scores)[gradient == 0] == 0)


@pytest.mark.parametrize("name", list(FORMS))
def test_one_sided_and_empty_classes_stay_finite(name: str) -> None:
    gradient, scores = _case(0)
    gradient[:, 0] = gradient[:, 0].clamp(max=0)
    gradient[:, 1] = 0
    assert torch.isfinite(FORMS[name](gradient, scores)).all()
    assert torch.all(FORMS[name](gradient, scores)[:, 1] == 0)


@pytest.mark.parametrize("name", ["class", "geometric"])
def test_scaling_forms_keep_every_sign(name: str) -> None:
    gradient, scores = _case(3)
    assert torch.equal(FORMS[name](gradient, scores).sign(), gradient.sign())
