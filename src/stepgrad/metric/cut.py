"""A fixed threshold of the score, as one more window to trade places with."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from stepgrad.errors import ConfigError
from stepgrad.metric.batch import Batch
from stepgrad.metric.protocol import Protocol


def with_cut(batch: Batch, protocol: Protocol, threshold: float | None) -> Batch:
    """A batch with one image more, whose one window scores the threshold and finds an object of every class.

    Of windows with that score it is the last, so what ranks above it passes the threshold (kernels/metric_code.py).
    """
    if threshold is None:
        return batch
    if max(protocol.match_thresholds) == 1.0 and not protocol.equality:
        raise ConfigError(
            "Expected match thresholds below 1, since an IoU must exceed them, but one is 1: nothing can be found."
        )
    # Large enough that what single-precision overlaps add to the union (metric/arithmetic.py) is lost: an IoU of exactly 1.
    K, box = batch.num_classes, np.array([0.0, 0.0, 64.0, 64.0])
    one_per_class = np.arange(K)
    return replace(
        batch,
        offsets=np.append(batch.offsets, batch.offsets[-1] + 1),
        scores=np.concatenate([batch.scores, np.full((1, K), threshold)]),  # float64: the threshold as it is
        boxes=np.concatenate([batch.boxes, np.broadcast_to(box, (1, *batch.boxes.shape[1:]))]),
        object_boxes=np.concatenate([batch.object_boxes, np.broadcast_to(box, (K, 4))]),
        object_labels=np.concatenate([batch.object_labels, one_per_class]),
        object_images=np.concatenate([batch.object_images, np.full(K, batch.images, dtype=np.int32)]),
        difficult=np.concatenate([batch.difficult, np.zeros(K, dtype=np.bool_)]),
        crowd=np.concatenate([batch.crowd, np.zeros(K, dtype=np.bool_)]),
        annotated_areas=None,  # no metric asks for a threshold and for areas
    )
