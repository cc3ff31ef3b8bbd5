"""What happened, in the sentences that a report opens with, said from its numbers alone."""

from __future__ import annotations

from collections.abc import Sequence

from stepgrad.number_text import counted, per_cent
from stepgrad.report.numbers import Numbers

MISTAKES = {
    "box": ("{nouns} that fit too badly", "on an object of its class, but overlapping too little"),
    "class": ("objects taken for another class", "on an object of another class"),
    "duplicate": ("second detections of one object", "on an object that a better detection has found"),
    "background": ("false alarms on background", "on nothing"),
    "both": ("detections wrong in class and place", "of the wrong class, and overlapping too little"),
    "missed": ("missed objects", "an object not found, and not part of another mistake"),
}
"""Each type of mistake as something that mAP is lost to, and what it means, after the word for it; nouns are the task's."""
LEAST = 0.0005
"""Of mAP: what is less shows as 0.0."""
NO_OBJECTS = "There are no objects to find, so there is no mAP."


def opening(numbers: Numbers) -> str:
    """What the training did, or what mAP is; then what most of the rest is lost to."""
    return " ".join(filter(None, [_what_happened(numbers), largest_losses(numbers["mistakes"])]))


def _what_happened(numbers: Numbers) -> str:
    run, protocol = numbers["run"], numbers["protocols"][0]
    points = run["validation"].get(protocol, {"steps": [], "values": []})
    points = list(zip(points["steps"], points["values"], strict=True))
    names = [phase["name"] for phase in run["phases"]]
    if "map" in names[1:]:
        first = next(phase["first"] for phase in run["phases"][1:] if phase["name"] == "map")
        before, during = ([p for p in points if (p[0] < first) == early] for early in (True, False))
        if before and during:
            return _phase_gain(numbers, before, during)
    if points and run["best_step"] is not None:
        return _reached(numbers, points)
    return _as_it_is(numbers)


def _gained(what: str, gain: float, reference: str) -> str:
    """
    >>> _gained("mAP training", 0.0121, "more cross-entropy"), _gained("mAP training", 0.0001, "more cross-entropy")
    ('mAP training gained 1.2 over more cross-entropy', 'mAP training did as well as more cross-entropy')
    """
    if abs(gain) < LEAST:
        return f"{what} did as well as {reference}"
    by = per_cent(abs(gain))
    return f"{what} gained {by} over {reference}" if gain > 0 else f"{what} lost {by} against {reference}"


def _phase_gain(numbers: Numbers, before: Sequence[tuple[int, float]], during: Sequence[tuple[int, float]]) -> str:
    """The best validation before the mAP phase, and the best one in it."""
    start, end = max(value for _, value in before), max(value for _, value in during)
    gain = end - start
    said = _gained(_trained_for(numbers), gain, "the cross-entropy before it")
    values = f"{per_cent(start)} to {per_cent(end)} on the validation images, {numbers['protocols'][0]}"
    if gain <= -LEAST:
        return f"{said} ({values}): {_why_lost(numbers)}."
    return f"{said} ({values}). One run does not show what more cross-entropy would have gained."


def _trained_for(numbers: Numbers) -> str:
    metric = numbers["config"].get("metric", "ap")
    return "mAP training" if metric in ("ap", None) else f"Training for {metric}"


def _why_lost(numbers: Numbers) -> str:
    """A loss on new images is one of two kinds: the training images got better meanwhile, or they did not."""
    batch = numbers["run"]["batch_map"]
    rise = batch["mean"][-1] - batch["mean"][0] if batch else 0.0
    if rise >= LEAST:
        return (
            f"meanwhile mAP on its own minibatches rose by {per_cent(rise)}, so it overfitted the training images; "
            "see docs/when_it_pays.md"
        )
    return "mAP on its own minibatches did not rise either, so try another learning rate (map.lr); see docs/training.md"


def _reached(numbers: Numbers, points: Sequence[tuple[int, float]]) -> str:
    """A run of one kind of training."""
    run = numbers["run"]
    phases = {phase["name"] for phase in run["phases"]}
    what = _trained_for(numbers) if phases == {"map"} else "Cross-entropy training" if phases == {"nll"} else "Training"
    best = max(value for _, value in points)
    said = (
        f"{what} reached mAP {per_cent(best)} ({numbers['protocols'][0]}) at step {run['best_step']} of {run['steps']}"
    )
    rising = len(points) > 1 and points[-1][0] == run["best_step"]
    return f"{said}, its last validation: more steps may gain more." if rising else f"{said}."


def _as_it_is(numbers: Numbers) -> str:
    name = numbers["protocols"][0]
    if numbers["maps"][name] is None:
        return NO_OBJECTS
    interval = numbers["intervals"][name]
    sure = "" if interval is None else f"{per_cent(interval[0])} to {per_cent(interval[1])}; "
    return (
        f"mAP is {per_cent(numbers['maps'][name])} ({sure}{name}) on {counted(numbers['dataset']['images'], 'image')}."
    )


def compared(numbers: Numbers) -> str:
    """What the chosen of several trainings did better or worse than the reference, and by which mistakes."""
    arms, protocol = numbers["arms"], numbers["protocols"][0]
    if len(arms) < 2 or numbers["chosen"] == numbers["reference"]:
        return ""
    chosen, reference = arms[numbers["chosen"]], arms[numbers["reference"]]
    gain = (chosen["gains"][protocol] or {}).get("mean")
    if gain is None:
        return NO_OBJECTS
    values = (
        f"{per_cent(reference['maps'][protocol]['mean'])} to {per_cent(chosen['maps'][protocol]['mean'])}, {protocol}"
    )
    said = f"{_gained(_subject(chosen), gain, _subject(reference))} ({values})"
    why = _mistakes_changed(numbers, gain)
    advice = "; see docs/when_it_pays.md" if gain <= -LEAST and "mAP" in chosen["training"] else ""
    sure = f" {numbers['paired']['sentence']}" if numbers["paired"] else ""
    return f"{said}{why and ': ' + why}{advice}.{sure}"


def _subject(arm: Numbers) -> str:
    return f"{arm['name']} ({arm['training']})" if arm["training"] else str(arm["name"])


def _mistakes_changed(numbers: Numbers, gain: float) -> str:
    """The type of mistake whose cost changed most in the direction of the gain."""
    before, after = (numbers["mistakes"][numbers[arm]] for arm in ("reference", "chosen"))
    changes = {kind: (after["gains"][kind] or 0.0) - (before["gains"][kind] or 0.0) for kind in MISTAKES}
    kind = min(changes, key=lambda kind: changes[kind] if gain > 0 else -changes[kind])
    if abs(gain) < LEAST or changes[kind] * gain >= 0 or abs(changes[kind]) < LEAST:
        return ""
    by = f"{per_cent(abs(changes[kind]))} {'less' if gain > 0 else 'more'}"
    return f"{_lost_to(kind, before)} cost {by} at {before['overlap']} {before['threshold']:g}"


def _lost_to(kind: str, mistakes: Numbers) -> str:
    """A type of mistake as something that mAP is lost to."""
    return MISTAKES[kind][0].format(nouns=mistakes["nouns"][1])


def largest_losses(mistakes: Numbers) -> str:
    """The one or two types of mistakes that would gain most if they were fixed."""
    gains = sorted(((gain or 0.0, kind) for kind, gain in mistakes["gains"].items()), reverse=True)
    worth = [(gain, _lost_to(kind, mistakes)) for gain, kind in gains if gain >= LEAST][:2]
    if not worth:
        return ""
    at = f"at {mistakes['overlap']} {mistakes['threshold']:g}"
    first = f"Most mAP is lost to {worth[0][1]} ({per_cent(worth[0][0])} {at})"
    return first + "".join(f", then to {words} ({per_cent(gain)})" for gain, words in worth[1:]) + "."
