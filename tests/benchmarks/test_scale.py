"""The benchmark of large batches counts as its page says."""

from typing import Any

import torch

from benchmarks.scale import CLASSES, Trial, check_claims, least_bytes, render
from stepgrad.detector import FastRCNN
from tests.double_precision import double_precision


def made_results() -> dict[str, Any]:
    rank = {"sent": 1020.0, "least": 1000.0, "gathering everything": 2000.0, "seconds": 0.1}
    memory = {"plain step of a chunk": {"extra": 100e6}, "chunked step": {"extra": 120e6}}
    return {
        "command": "python x",
        "machine": {"cores": 2},
        "images": 256,
        **{f"{kind}, {name}": row for kind in ("memory", "kept memory") for name, row in memory.items()},
        "time": {"chunked step": {"median": 17.0}, "plain steps of a chunk": {"median": 10.0}},
        "million": {"extra": 1e9, "whole": 2e9, "seconds": 60.0, "windows": 1_000_000},
        "traffic": {"world": 2, "ranks": [rank, rank], "seconds, one process": 0.2, "threads, one process": 2},
    }


def test_claims_compare_what_they_say() -> None:
    memory, seconds, million, sent = check_claims(made_results())
    assert (memory.measured, memory.met) == (1.2, True)
    assert (seconds.measured, seconds.met) == (1.7, False)
    assert million.met
    assert (sent.measured, sent.met) == (1.02, True)


def test_the_page_shows_every_claim() -> None:
    results = made_results()
    claims = check_claims(results)
    page = render({**results, "claims": [vars(claim) for claim in claims]})
    assert page.count("| yes |") == sum(claim.met for claim in claims)
    assert page.count("| **no** |") == sum(not claim.met for claim in claims)


def test_two_processes_need_to_send_half_of_scores_and_gradients() -> None:
    found = least_bytes(0, 2, own=100, everyones=200, objects=0)
    assert found["least"] == 4 * (100 * CLASSES / 2 + 100 * CLASSES / 2 + 100 * 4)
    many = least_bytes(0, 10, own=100, everyones=1000, objects=0)
    assert many["least"] <= many["gathering everything"] / 3


def test_the_chunked_step_and_the_plain_one_are_of_the_same_loss() -> None:
    trial = Trial(images=5, windows=150)
    with double_precision():  # and a small network, as AlexNet takes long in it
        trial.model = FastRCNN(CLASSES, "tiny", score="raw", loss="map", hidden=32, dropout=0.0, shortest_side=None)
        trial.plain_step()
        expected = [p.grad.clone() for p in trial.model.parameters() if p.grad is not None]
        trial.chunked_step()
    found = [p.grad for p in trial.model.parameters() if p.grad is not None]
    assert len(found) == len(expected) > 0
    largest = max(float(g.abs().max()) for g in expected)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10 * largest)
