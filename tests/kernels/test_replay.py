"""What a replay says of its windows, against the list itself."""

from __future__ import annotations

import numpy as np
import pytest

from stepgrad.kernels.cascade import ADDED, REMOVED
from stepgrad.kernels.matching import TRUE_POSITIVE
from stepgrad.kernels.replay import replay_shifts_a_true_positive, replay_touches_objects
from stepgrad.kernels.scene import build_scene
from tests.kernels.views import viewed


@pytest.mark.parametrize("seed", range(4))
def test_a_replay_shifts_a_true_positive_unless_losses_and_gains_above_each_cancel(seed: int) -> None:
    case = viewed(seed)
    scene = build_scene(case.view, case.rule)
    rng = np.random.default_rng(seed)
    hits = np.sort(case.view.position[np.flatnonzero(scene.roles == TRUE_POSITIVE)])
    others = case.view.order[scene.roles[case.view.order] != TRUE_POSITIVE]
    outcomes = set()
    for trial in range(200):
        chosen = rng.permutation(others)[: 2 * (1 + trial % 3) + trial % 2]
        removed, added = np.split(chosen, [len(chosen) // 2])
        scene.cascade.removed[: len(removed)], scene.cascade.added[: len(added)] = removed, added
        scene.cascade.counts[REMOVED], scene.cascade.counts[ADDED] = len(removed), len(added)
        gained, lost = (case.view.position[slots] for slots in (added, removed))
        shifts = [int((gained < hit).sum()) - int((lost < hit).sum()) for hit in hits.tolist()]
        assert replay_shifts_a_true_positive(scene) == any(shifts)
        assert not scene.shift.any()  # ready for the next
        outcomes.add(any(shifts))
        assert replay_touches_objects(scene, int(chosen[0])) == bool((scene.candidates.best[chosen] >= 0).any())
    assert outcomes == {False, True}
