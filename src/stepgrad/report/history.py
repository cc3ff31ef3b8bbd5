"""The log of a run as lines to draw, with fewer points but the same look."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np

from stepgrad.report.svg import Floats, thin

Line = Mapping[str, Any]
MOST_POINTS = 400
MOST = 1e300  # numbers beyond it, and infinities, cannot be drawn


def current_lines(history: Sequence[Line], kind: str) -> list[Line]:
    """The lines of one kind, by step. Steps that a resumed run took again replace those of the first time.

    >>> lines = [{"kind": "train", "step": s, "try": t} for s, t in [(1, "a"), (2, "a"), (3, "a"), (2, "b")]]
    >>> [(line["step"], line["try"]) for line in current_lines(lines, "train")]
    [(1, 'a'), (2, 'b')]
    """
    kept: list[Line] = []
    for line in history:
        if not _is_whole_number(_of(line, "step")):
            continue
        if line.get("kind") == "start":
            while kept and kept[-1]["step"] > line["step"]:
                kept.pop()
        if line.get("kind") == kind:
            while kept and kept[-1]["step"] >= line["step"]:
                kept.pop()
            kept.append(line)
    return kept


def _of(line: Any, key: str) -> Any:
    return line.get(key) if isinstance(line, Mapping) else None


def _is_whole_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**53


def number_in(line: Any, *keys: str) -> float | None:
    """The finite number under these keys, else None: whoever edits a log by hand may leave anything in it.

    >>> number_in({"losses": {"map": 0.5}}, "losses", "map")
    0.5
    """
    value = reduce(_of, keys, line)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < MOST:
        return None
    return value


def parts(line: Any, key: str) -> Line:
    """The dict that a line has under a key; empty where there is none."""
    value = _of(line, key)
    return value if isinstance(value, Mapping) else {}


def series(lines: Sequence[Line], *keys: str) -> dict[str, Any] | None:
    """Steps, the numbers under these keys and their moving mean, thinned; None if no line has such a number."""
    points = [(line["step"], value) for line in lines if (value := number_in(line, *keys)) is not None]
    if not points:
        return None
    steps, values = np.array(points, dtype=np.float64).T
    x, y = thin(steps, values, MOST_POINTS)
    smooth_x, smooth_y = thin(steps, smooth(values), MOST_POINTS)
    return {
        "steps": x.astype(int).tolist(),
        "values": y.tolist(),
        "mean_steps": smooth_x.astype(int).tolist(),
        "mean": smooth_y.tolist(),
    }


def phases_of(train: Sequence[Line], val: Sequence[Line]) -> list[dict[str, Any]]:
    """Name and first and last step of each phase, in order; a phase too short for a line of training has its validation."""
    phases: list[dict[str, Any]] = []
    for line in sorted([*train, *(line for line in val if "phase" in line)], key=lambda line: line["step"]):
        name = line.get("phase") if isinstance(line.get("phase"), str) else None
        if not phases or phases[-1]["name"] != name:
            phases.append({"name": name, "first": line["step"], "last": line["step"]})
        phases[-1]["last"] = line["step"]
    return phases


def losses(train: Sequence[Line], phases: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The loss of each phase, and its terms where there are several."""
    charted = []
    for phase in phases:
        lines = [line for line in train if phase["first"] <= line["step"] <= phase["last"]]
        total = series(lines, "loss")
        terms = sorted({term for line in lines for term in parts(line, "losses")})
        by_term = {term: series(lines, "losses", term) for term in terms}
        if total:
            charted.append({"phase": phase["name"], "total": total, "terms": by_term if len(terms) > 1 else {}})
    return charted


def validation(val: Sequence[Line], key: str = "map") -> dict[str, dict[str, list[Any]]]:
    """By protocol: steps and mAP; or, with the key "metrics", by metric: steps and its values."""
    names = list(dict.fromkeys(name for line in val for name in parts(line, key)))
    return {
        name: {"steps": [step for step, _ in points], "values": [value for _, value in points]}
        for name in names
        if (points := [(line["step"], v) for line in val if (v := number_in(line, key, name)) is not None])
    }


def summary(history: Sequence[Line], protocol: str) -> dict[str, Any]:
    """The curves and numbers of a run over its steps."""
    train, val = current_lines(history, "train"), current_lines(history, "val")
    phases = phases_of(train, val)
    validated = validation(val)
    return {
        "phases": phases,
        "loss": losses(train, phases),
        "validation": validated,
        "metrics": validation(val, "metrics"),
        "batch_map": series(train, "map"),
        **{key: series(train, key) for key in ("nonzero", "positive_sum", "negative_sum", "loss_share")},
        **_ending(history, train, val, validated.get(protocol, {"steps": [], "values": []})),
    }


def _ending(
    history: Sequence[Line], train: Sequence[Line], val: Sequence[Line], points: Mapping[str, list[Any]]
) -> dict[str, Any]:
    """Last step, training time and best step; what the log does not say outright is read off its other lines."""
    ends = current_lines(history, "end")
    last: Line = train[-1] if train else {}
    ended = ends[-1] if ends and ends[-1]["step"] >= last.get("step", 0) else {}
    keys = ("step", "seconds", "best_step", "best_map")
    end = {key: value for key in keys if (value := number_in(ended, key)) is not None}
    best = max(zip(points["values"], (-step for step in points["steps"]), strict=True), default=(None, None))
    return {
        "steps": end.get("step", max((line["step"] for line in (*train, *val)), default=None)),
        "seconds": end.get("seconds", number_in(last, "seconds")),
        "best_step": end.get("best_step", None if best[1] is None else -best[1]),
        "best_map": end.get("best_map", best[0]),
    }


def smooth(values: Floats, share: float = 0.08) -> Floats:
    """A centred moving mean over that share of the points, narrower at both ends.

    >>> smooth(np.array([0.0, 3.0, 0.0]), share=1.0)
    array([0., 1., 0.])
    """
    half = int(len(values) * share / 2)
    sums = np.concatenate([[0.0], np.cumsum(values)])
    at = np.arange(len(values))
    reach = np.minimum(np.minimum(at, at[::-1]), half)
    return (sums[at + reach + 1] - sums[at - reach]) / (2 * reach + 1)
