"""The new class layer by itself: what it does to features, and which layers it can take the place of."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from stepgrad.errors import ConfigError
from stepgrad.models.new_head.convolutions import ClassConvolutions
from stepgrad.models.new_head.layer import FIRST, ClassLayer

WIDTH = 4


def rows(count: int = 50) -> torch.Tensor:
    """Slot 0, some quality, features of very different size."""
    made = torch.randn(count, FIRST + WIDTH, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    made[:, 0] = 0
    made[:, FIRST:] = made[:, FIRST:] * torch.tensor([2.0, 20.0, 200.0, 2000.0]) + 7.0
    return made


def layer_that_copies(quality: str | None = None) -> ClassLayer:
    """A layer whose outputs are its features as it sees them."""
    layer = ClassLayer(1, WIDTH, WIDTH, quality=quality).double()
    with torch.no_grad():
        layer.weight.copy_(torch.eye(WIDTH)[None])
        layer.bias.zero_()
    return layer


def test_features_are_seen_with_mean_0_and_spread_1() -> None:
    layer = layer_that_copies()
    layer.standardise_like(rows().split(20))
    seen = layer(rows())
    torch.testing.assert_close(seen.mean(0), torch.zeros(WIDTH, dtype=torch.float64), rtol=0.0, atol=1e-9)
    torch.testing.assert_close(seen.std(0, correction=0), torch.ones(WIDTH, dtype=torch.float64), rtol=0.0, atol=1e-2)


def test_a_quality_is_added_where_it_is_part_of_the_score_and_only_there() -> None:
    given = rows()
    plain = layer_that_copies()(given)
    assert torch.equal(plain, given[:, FIRST:])
    torch.testing.assert_close(layer_that_copies("sum")(given), plain + given[:, 1:FIRST])


@pytest.mark.parametrize(("size", "padding"), [(3, 1), (3, "same"), (1, 0), (1, "same"), (1, "valid"), (5, 2)])
def test_convolutions_that_keep_the_size_of_their_map_can_be_replaced(size: int, padding: int | str) -> None:
    layer = nn.Conv2d(2, 3, size, padding=padding)
    assert layer(torch.zeros(1, 2, 6, 7)).shape[2:] == (6, 7)
    assert ClassConvolutions([layer], 3, centre_only=False).layers == [layer]


@pytest.mark.parametrize(("size", "padding"), [(3, 0), (3, "valid"), (1, 1), (2, "same"), (5, 1)])
def test_other_convolutions_cannot(size: int, padding: int | str) -> None:
    with pytest.raises(ConfigError, match="keep the size of their map"):
        ClassConvolutions([nn.Conv2d(2, 3, size, padding=padding)], 3, centre_only=False)
