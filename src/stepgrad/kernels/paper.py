"""Steps through NMS with the paper's two approximations (Henderson & Ferrari 2016, Sec. 4.4, "Incorporating NMS").

(i) A suppressed window is taken to be at one with its suppressor: same steps, reached from its own score.
(ii) Where an object is missed because windows on it are suppressed, such a window b and its suppressor d are pushed apart:
+c for b, -c for d, with c = 1/2 (AP' - AP) / max(s_d - s_b, min_step) and AP' the AP with b, now a true positive, in d's place.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stepgrad.kernels.class_view import ClassView, image_of, is_kept
from stepgrad.kernels.edited_ap import edited_sum
from stepgrad.kernels.jit import by_reference, keep_alive, kernel
from stepgrad.kernels.matching import FALSE_POSITIVE, TRUE_POSITIVE, Rules
from stepgrad.kernels.nms_steps import THROUGH_NONE, StepSums, nearest_steps, new_search
from stepgrad.kernels.rank_steps import tie_groups
from stepgrad.kernels.ranked_list import put_edit
from stepgrad.kernels.scene import Scene, best_of, build_scene, role_at


@kernel
def _share_steps(scene: Scene, t: int, out: StepSums) -> None:
    """Approximation (i): nearest steps of the kept windows, shared by those they suppress."""
    for slot in scene.windows.order:
        if is_kept(scene.windows, slot):
            continue
        above = scene.windows.kept.suppressor[slot]
        out.up_at[t, slot], out.up_sum[t, slot] = out.up_at[t, above], out.up_sum[t, above]
        if scene.windows.scores[slot] > out.down_at[t, above]:
            out.down_at[t, slot], out.down_sum[t, slot] = out.down_at[t, above], out.down_sum[t, above]


@kernel
def _missed_object_pushes(scene: Scene, t: int, min_step: float, pushes: NDArray[np.float64]) -> None:
    """Approximation (ii): pushes on windows and suppressors over missed objects, in units of the sum."""
    for slot in scene.windows.order:
        target = best_of(scene, t, slot)
        if (
            is_kept(scene.windows, slot)
            or target < 0
            or scene.windows.objects.ignored[target]
            or scene.claims[t, target] > 0
        ):
            continue
        above = scene.windows.kept.suppressor[slot]
        if scene.windows.position[above] > scene.judged.last_counted[image_of(scene.windows, above)]:
            continue  # in its place the window would not count either
        distance = max(scene.windows.scores[above] - scene.windows.scores[slot], min_step)
        if distance <= 0.0:
            continue
        role = role_at(scene, t, above)
        scene.edits.size[0] = 0
        put_edit(
            scene.edits,
            2 * scene.windows.position[above] + 1,
            1 - int(role == TRUE_POSITIVE),
            -int(role == FALSE_POSITIVE),
        )
        replaced, _ = edited_sum(scene.ranked, scene.lift, t, scene.edits)
        push = 0.5 * (replaced - scene.high[t]) / distance
        pushes[slot] += push
        pushes[above] -= push


@kernel
def paper_of_class(view: ClassView, rules: Rules, min_step: float) -> tuple[StepSums, NDArray[np.float64]]:
    """Both approximations for one class at every threshold; pushes (t, slots)."""
    owned = build_scene(view, rules, tie_groups(view.scores, view.order))
    scene = by_reference(owned)
    search = new_search(scene)
    nearest_steps(scene, THROUGH_NONE, by_reference(search))
    pushes = np.zeros(search.out.up_at.shape)
    for t in range(len(pushes)):
        _share_steps(scene, t, search.out)
        _missed_object_pushes(scene, t, min_step, pushes[t])
    keep_alive(owned)
    return search.out, pushes
