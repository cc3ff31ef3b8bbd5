"""The demo's page."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from stepgrad.models.demo.trial import MAP, MORE, NOTES, Pictures, Settings, TrialOutcome, task
from stepgrad.models.fine_tuning.report import arm
from stepgrad.report import write_comparison


def write(folder: Path, outcome: TrialOutcome, pictures: Pictures, settings: Settings) -> Path:
    """report.html and what belongs to it; returns the path of the page."""
    chosen = task()
    arms = [
        arm(name, NOTES[name], way.test, outcome.heads[name], pictures.test, chosen, way.seconds, pictures.test_set)
        for name, way in outcome.ways.items()
    ]
    names = list(outcome.ways)
    plans = {name: asdict(plan) for name, plan in settings.plans.items()}
    return write_comparison(
        folder,
        title="stepgrad demo: a new class head on a trained detector",
        sentence=outcome.sentence,
        arms=arms,
        reference=names.index(MORE),
        chosen=names.index(MAP),
        protocols=chosen.reported,
        dataset=pictures.test_set,
        config={"demo": asdict(settings), "trainings": plans},
    )
