"""The benchmark of the first call compares versions round by round."""

from benchmarks.first_call import summary


def test_ratios_are_taken_within_rounds() -> None:
    """A slow spell that hits one round whole changes no ratio."""

    def found(slow: float) -> dict[str, dict[str, dict[str, float]]]:
        seconds = {"before": 10.0, "after": 2.0}
        return {
            name: {cache: {"wall": s * slow, "cpu": s * slow, "compiled": 5} for cache in ("cold", "warm")}
            for name, s in seconds.items()
        }

    table = summary([found(1.0), found(4.0), found(2.0)])
    assert table["cold"]["before wall"] == 20.0
    assert [table[cache][f"ratio {key}"] for cache in table for key in ("wall", "cpu")] == [0.2] * 4
