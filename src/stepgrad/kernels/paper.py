"""Steps through NMS with the paper's two approximations (Henderson & Ferrari 2016, Sec. 4.4, "Incorporating NMS").

(i) A suppressed window is taken to be at one with its suppressor: same steps, reached from its own score.
(ii) Where an object is missed because windows on it are suppressed, such a window b and its suppressor d are pushed apart:
+c for b, -c for d, with c = 1/2 (AP' - AP) / max(s_d - s_b, min_step) and AP' the AP with b, now a true positive, in d's place.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stepgrad.kernels.class_view import ClassView, image_of
from stepgrad.kernels.edited_ap import edited_sum, put_edit
from stepgrad.kernels.jit import by_reference, keep_alive, kernel
from stepgrad.kernels.matching import ABSENT, FALSE_POSITIVE, TRUE_POSITIVE, Rule
from stepgrad.kernels.nms_steps import THROUGH_NONE, StepSums, nearest_steps
from stepgrad.kernels.scene import Scene, build_scene, list_sum


@kernel
def paper_steps(scene: Scene) -> StepSums:
    """Approximation (i): nearest steps of the kept windows, shared by those they suppress."""
    out = nearest_steps(scene, THROUGH_NONE)
    for slot in scene.windows.order:
        if scene.roles[slot] != ABSENT:
            continue
        above = scene.windows.kept.suppressor[slot]
        out.up_at[slot], out.up_sum[slot] = out.up_at[above], out.up_sum[above]
        if scene.windows.scores[slot] > out.down_at[above]:
            out.down_at[slot], out.down_sum[slot] = out.down_at[above], out.down_sum[above]
    return out


@kernel
def missed_object_pushes(scene: Scene, min_step: float) -> NDArray[np.float64]:
    """Approximation (ii): pushes on windows and suppressors over missed objects, in units of the sum."""
    pushes = np.zeros(len(scene.windows.position))
    hi, _ = list_sum(scene)
    for slot in scene.windows.order:
        target = scene.candidates.best[slot]
        if (
            scene.roles[slot] != ABSENT
            or target < 0
            or scene.windows.objects.ignored[target]
            or scene.claims[target] > 0
        ):
            continue
        above = scene.windows.kept.suppressor[slot]
        if scene.windows.position[above] > scene.last_counted[image_of(scene.windows, above)]:
            continue  # in its place the window would not count either
        distance = max(scene.windows.scores[above] - scene.windows.scores[slot], min_step)
        if distance <= 0.0:
            continue
        scene.edits.size[0] = 0
        put_edit(
            scene.edits,
            2 * scene.windows.position[above] + 1,
            1 - int(scene.roles[above] == TRUE_POSITIVE),
            -int(scene.roles[above] == FALSE_POSITIVE),
        )
        replaced, _ = edited_sum(scene.ranked, scene.lift, scene.edits)
        push = 0.5 * (replaced - hi) / distance
        pushes[slot] += push
        pushes[above] -= push
    return pushes


@kernel
def paper_of_class(view: ClassView, rule: Rule, min_step: float) -> tuple[StepSums, NDArray[np.float64]]:
    """Both approximations for one class at one threshold."""
    owned = build_scene(view, rule)
    scene = by_reference(owned)
    steps = paper_steps(scene)
    pushes = missed_object_pushes(scene, min_step)
    keep_alive(owned)
    return steps, pushes
