"""The benchmark of SoftRank's cost fits what it measured and says so."""

import pytest

from benchmarks.soft_rank import BATCH, fit, measure, render


def test_fit_of_exact_cubes_is_three_and_carries_on() -> None:
    found = fit({n: 2e-9 * n**3 for n in (800, 1000, 1600)})
    assert found["exponent"] == pytest.approx(3.0)
    assert found["batch hours"] * 3600 == pytest.approx(2e-9 * BATCH[0] ** 3 * BATCH[1])


def test_page_shows_every_length_measured() -> None:
    results = measure(rounds=1, sizes=(10, 20))
    page = render(results)
    for n in ("10", "20"):
        assert f"| {n} | {results['seconds'][n]['median']:.3f} |" in page
