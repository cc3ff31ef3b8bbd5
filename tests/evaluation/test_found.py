"""Which objects were found: the same matching as the evaluator's, and as the slow oracle's."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from stepgrad.engine.matching import TRUE_POSITIVE
from stepgrad.evaluation.counted import countable
from stepgrad.evaluation.judge import NOTHING, judge
from stepgrad.evaluation.records import Evidence
from stepgrad.metric.protocol import Protocol, get_protocol
from stepgrad.reference.matching import best_free_object, best_object, describe_objects
from tests.evaluation.datasets import random_dataset

PROTOCOLS = ["voc12", "voc07-devkit", "voc07-python", "coco"]


def evidence_of(seed: int, flag: str) -> Evidence:
    return random_dataset(np.random.default_rng(seed), flag).evaluator("voc12").evidence()


def found_by_oracle(
    evidence: Evidence, label: int, ranked: list[int], protocol: Protocol, threshold: float
) -> list[int]:
    """One detection at a time, as the rules are written; rows of objects, NOTHING but for true positives."""
    found, objects = evidence.detections, evidence.objects
    taken: dict[int, set[int]] = {}
    seen: dict[int, int] = {}
    answer = []
    for row in ranked:
        image = int(found.images[row])
        seen[image] = seen.get(image, 0) + 1
        rows = np.flatnonzero((objects.images == image) & (objects.labels == label))
        described = describe_objects(
            found.boxes[[row]],
            objects.boxes[rows],
            objects.difficult[rows],
            objects.crowd[rows] & (protocol.duplicates == "best_free"),
            protocol,
        )
        used = taken.setdefault(image, set())
        if protocol.duplicates == "best":
            o = best_object(described.overlaps[0], threshold, protocol.equality, protocol.last_of_equal_overlaps)
        else:
            o = best_free_object(described.overlaps[0], described, used, threshold)
        late = protocol.max_detections is not None and seen[image] > protocol.max_detections
        if o is None or described.ignored[o] or o in used or late:
            answer.append(NOTHING)
        else:
            used.add(o)
            answer.append(int(rows[o]))
    return answer


@pytest.mark.parametrize("name", PROTOCOLS)
@pytest.mark.parametrize("flag", ["difficult", "iscrowd"])
def test_found_objects_equal_the_oracles_matching(name: str, flag: str) -> None:
    compared = 0
    for seed in range(3):
        evidence, protocol = evidence_of(seed, flag), get_protocol(name)
        protocol = replace(protocol, max_detections=2 if seed == 2 else protocol.max_detections)
        for judged in judge(evidence, protocol):
            for t, threshold in list(enumerate(protocol.match_thresholds))[:3]:
                found = judged.found[t].tolist()
                ranked = judged.detections.tolist()
                assert found == found_by_oracle(evidence, judged.label, ranked, protocol, threshold)
                compared += sum(row != NOTHING for row in found)
    assert compared > 50


@pytest.mark.parametrize("name", PROTOCOLS)
def test_exactly_the_true_positives_find_an_object_each_a_different_countable_one(name: str) -> None:
    evidence, protocol = evidence_of(7, "difficult"), get_protocol(name)
    counts = countable(evidence, protocol)
    for judged in judge(evidence, protocol):
        found = judged.found[0]
        np.testing.assert_array_equal(found != NOTHING, judged.verdicts[0] == TRUE_POSITIVE)
        rows = found[found != NOTHING]
        assert len(set(rows.tolist())) == len(rows)
        assert counts[rows].all()
        assert int(np.count_nonzero(counts & (evidence.objects.labels == judged.label))) == judged.P
