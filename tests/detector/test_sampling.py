"""Drawing windows: the shares asked for, labels by the object overlapped most."""

from __future__ import annotations

import pytest
import torch

from stepgrad.detector import Sampling
from stepgrad.detector.sampling import Sample, label_windows, sample_windows
from stepgrad.errors import ConfigError
from tests.detector.scenes import K, random_target, random_windows
from tests.oracles.detector import window_labels


def crowded(seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Windows near two objects, and their labels."""
    target = random_target(seed)
    generator = torch.Generator().manual_seed(seed)
    near = target["boxes"].repeat(20, 1) + torch.randint(-6, 3, (40, 4), generator=generator).float()
    near[:, 2:] = torch.maximum(near[:, 2:], near[:, :2] + 1)
    return torch.cat([near, random_windows(40, seed)]), target["boxes"], target["labels"]


def draw(seed: int, sampling: Sampling, generator_seed: int = 0) -> Sample:
    windows, boxes, labels = crowded(seed)
    return sample_windows(windows, boxes, labels, K, sampling, torch.Generator().manual_seed(generator_seed))


@pytest.mark.parametrize("seed", range(8))
def test_labels_equal_the_slow_twin(seed: int) -> None:
    windows, boxes, labels = crowded(seed)
    overlap, shown, _ = label_windows(windows, boxes, labels, K)
    slow_overlap, slow_shown = window_labels(windows, boxes, labels, K)
    assert overlap.tolist() == pytest.approx(slow_overlap, abs=1e-15)
    assert shown.tolist() == slow_shown


def test_overlap_of_exactly_half_is_foreground_and_the_first_of_equals_wins() -> None:
    boxes = torch.tensor([[0.0, 0.0, 10.0, 10.0], [10.0, 0.0, 20.0, 10.0], [0.0, 0.0, 10.0, 10.0]])
    windows = torch.tensor([[0.0, 0.0, 10.0, 5.0], [0.0, 0.0, 10.0, 4.9], [5.0, 0.0, 15.0, 10.0]])
    _, shown, which = label_windows(windows, boxes, torch.tensor([2, 1, 0]), K)
    assert (shown.tolist(), which.tolist()) == ([2, K, K], [0, 0, 0])


@pytest.mark.parametrize("seed", range(8))
def test_shares_are_those_of_the_original(seed: int) -> None:
    """At most a quarter on objects, the others at IoU [0.1, 0.5), none twice, as many as there are."""
    windows, boxes, labels = crowded(seed)
    pool = torch.cat([boxes, windows])
    overlap, *_ = label_windows(pool, boxes, labels, K)
    foreground, background = int((overlap >= 0.5).sum()), int(((overlap >= 0.1) & (overlap < 0.5)).sum())
    sample = draw(seed, Sampling(windows=24))
    assert sample.positives == min(6, foreground)
    assert len(sample.windows) == sample.positives + min(24 - sample.positives, background)
    drawn, drawn_labels, _ = label_windows(sample.windows, boxes, labels, K)
    assert torch.equal(drawn_labels, sample.labels)
    assert drawn.min() >= 0.1
    rows = [tuple(w) for w in sample.windows.tolist()]
    available = [tuple(w) for w in pool.tolist()]
    assert all(rows.count(row) <= available.count(row) for row in rows)


def test_every_window_is_drawn_sooner_or_later_and_none_is_favoured() -> None:
    windows, boxes, labels = random_windows(20), torch.zeros(0, 4), torch.zeros(0, dtype=torch.long)
    generator = torch.Generator().manual_seed(0)
    counts = torch.zeros(20)
    for _ in range(400):
        sample = sample_windows(windows, boxes, labels, K, Sampling(5, None), generator)
        counts += (windows[:, None] == sample.windows).all(dim=2).any(dim=1)
    assert counts.min() > 60  # 100 expected, standard deviation 9
    assert counts.max() < 140


def test_the_generator_decides() -> None:
    assert torch.equal(draw(0, Sampling(16), 1).windows, draw(0, Sampling(16), 1).windows)
    assert not torch.equal(draw(0, Sampling(16), 1).windows, draw(0, Sampling(16), 2).windows)


def test_without_looking_background_far_from_objects_is_drawn_too() -> None:
    _, boxes, labels = crowded(0)
    sample = draw(0, Sampling(70, None, background_overlap=0.4, ground_truth=False))
    assert len(sample.windows) == 70
    overlap, *_ = label_windows(sample.windows, boxes, labels, K)
    assert overlap.min() < 0.1


def test_none_takes_all_windows_in_order_with_the_objects_in_front() -> None:
    windows, boxes, _ = crowded(0)
    assert torch.equal(draw(0, Sampling(None)).windows, torch.cat([boxes, windows]))
    assert torch.equal(draw(0, Sampling(None, ground_truth=False)).windows, windows)


def test_empty_images_are_ordinary() -> None:
    none, no_labels = torch.zeros(0, 4), torch.zeros(0, dtype=torch.long)
    box, label = random_windows(1), torch.tensor([1])
    for sampling in (Sampling(), Sampling(None), Sampling(8, None), Sampling(8, 0.5, 0.0, ground_truth=False)):
        assert len(sample_windows(none, none, no_labels, K, sampling).windows) == 0
        own = sample_windows(none, box, label, K, sampling)
        assert own.labels.tolist() == [1] * sampling.ground_truth
        background = sample_windows(random_windows(4), none, no_labels, K, sampling)
        assert background.positives == 0
        assert len(background.windows) == (
            0 if sampling.foreground and sampling.background_overlap and sampling.windows else 4
        )


def test_impossible_shares_are_refused() -> None:
    for options in ({"windows": 0}, {"foreground": 1.5}, {"background_overlap": 0.7}):
        with pytest.raises(ConfigError, match=next(iter(options))):
            Sampling(**options)  # type: ignore[arg-type]
