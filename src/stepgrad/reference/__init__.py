"""The paper, executable: one short file per section, in plain Python and NumPy, without a fast line.

Read in this order; every kernel of the library is tested against these files.

| file                 | Henderson & Ferrari 2016                                                    |
|----------------------|-----------------------------------------------------------------------------|
| boxes.py             | intersection over union                                                     |
| nms.py               | Sec. 2.1, greedy non-maximum suppression                                    |
| matching.py          | Sec. 2.2, which detections are true positives                               |
| average_precision.py | Sec. 2.2, interpolated average precision of a ranked list                   |
| class_ap.py          | Sec. 2.2, the AP of one class of a batch: NMS, matching, ranking            |
| steps.py             | Sec. 4.4, that AP as a step function of one score                           |
| estimators.py        | Sec. 4.3, pseudo partial derivatives of a step function: SDE, MEE, radius   |
| paper_nms.py         | Sec. 4.4, the paper's two approximations for gradients through NMS          |
| mean_ap.py           | Sec. 2.2, the mean over classes                                             |
| map_loss.py          | Sec. 4.5, the pseudogradient of mAP, and the loss                           |

How other tools round and read the same numbers stands apart, in other_tools.py. Beyond the paper, the same for the metrics
that detectors are deployed by:

| list_metrics.py      | F1, recall at a precision, cost, miss rate and so on, of a ranked list      |
| metric_steps.py      | any of them as a step function of one score                                 |
| overlaps.py          | masks, poses and oriented boxes: how alike a window and an object are       |

Nothing here imports torch, numba or a kernel: only the record of conventions, `stepgrad.metric.protocol`.
"""

from __future__ import annotations

from stepgrad.reference import (
    average_precision,
    boxes,
    class_ap,
    estimators,
    list_metrics,
    map_loss,
    matching,
    mean_ap,
    metric_steps,
    nms,
    other_tools,
    overlaps,
    paper_nms,
    steps,
)

__all__ = [
    "average_precision",
    "boxes",
    "class_ap",
    "estimators",
    "list_metrics",
    "map_loss",
    "matching",
    "mean_ap",
    "metric_steps",
    "nms",
    "other_tools",
    "overlaps",
    "paper_nms",
    "steps",
]
