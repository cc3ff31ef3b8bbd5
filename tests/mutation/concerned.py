"""Which tests concern which file. The quickest come first: a mutant's tests stop at the first failure.

Tests of large scenes are left out: where kernels run as Python they take minutes. The evaluator, which has no kernels of
its own, is tested with compiled ones.
"""

from __future__ import annotations

_SCENES = ("tests/kernels/test_small_scenes.py",)
_METRIC = ("tests/kernels/test_small_parts.py", "tests/kernels/test_nms.py", *_SCENES)
_LOSS = ("tests/losses/test_map_loss_edges.py", "tests/losses/test_empties.py", "tests/losses/test_bad_input.py")
_BASELINES = (
    *("tests/losses/test_baselines_windows.py", "tests/losses/test_baselines_smooth.py"),
    *("tests/losses/test_baselines_structured.py", "tests/losses/test_baselines_interface.py"),
)
_EVALUATOR = (
    *("tests/evaluation/test_compare.py", "tests/evaluation/test_evaluator.py", "tests/evaluation/test_bad_input.py"),
    *("tests/evaluation/test_files.py", "tests/evaluation/test_evaluator_differences.py"),
)

CONCERNED: dict[str, tuple[str, ...]] = {
    "metric/": _METRIC,
    "kernels/cache.py": ("tests/kernels/test_cache_damage.py", "tests/kernels/test_cache_folder.py"),
    "metric/batch.py": (
        *("tests/losses/test_bad_input.py", "tests/losses/test_empties.py", "tests/losses/test_empty_windows.py"),
        *_METRIC,
    ),
    "metric/boxes.py": (*_BASELINES[:1], "tests/report/test_found.py"),
    "metric/mean_ap.py": (
        *_LOSS,
        *("tests/kernels/test_small_parts.py", "tests/metric/test_mean_average_precision.py"),
        "tests/evaluation/test_evaluator.py",
    ),
    "metric/protocol.py": (
        "tests/kernels/test_small_parts.py",
        *("tests/evaluation/test_compare.py", "tests/evaluation/test_evaluator_differences.py"),
    ),
    "kernels/": (*_METRIC, "tests/steps/test_map_steps.py"),
    "steps/": ("tests/steps",),
    "steps/estimators.py": (*_SCENES, "tests/steps/test_estimators.py", "tests/steps/test_map_steps.py"),
    "layers/": ("tests/layers", "tests/steps"),
    "kernels/balance.py": ("tests/losses/test_balance.py", "tests/steps/test_gradient_laws.py"),
    "steps/map_steps.py": (*_SCENES, *_LOSS, "tests/losses/test_map_loss.py", "tests/steps/test_map_steps.py"),
    "losses/": (*_LOSS, "tests/losses/test_map_loss.py", "tests/losses/test_balance.py"),
    "losses/map_loss.py": (*_LOSS, "tests/losses/test_options.py", "tests/losses/test_map_loss.py"),
    "losses/likely_mistakes.py": ("tests/losses/test_likely_mistakes.py",),
    "losses/ragged.py": ("tests/losses/test_ragged.py",),
    "losses/score_memory.py": ("tests/losses/test_score_memory.py",),
    "losses/baselines/": _BASELINES,
    "evaluation/": _EVALUATOR,
    "evaluation/result.py": (*_EVALUATOR, "tests/evaluation/test_best_f1.py"),
    "evaluation/records.py": (*_EVALUATOR, "tests/evaluation/test_parity_decimals.py"),
    "evaluation/plots.py": ("tests/evaluation/test_plots.py",),
    "evaluation/coco_numbers.py": (
        *("tests/evaluation/test_evaluator_differences.py", "tests/evaluation/test_evaluator.py"),
        "tests/evaluation/test_fixtures.py::test_coco_sample_equals_pycocotools_twelve_numbers",
    ),
    "evaluation/read_files.py": ("tests/evaluation/test_files.py", "tests/evaluation/test_bad_input.py"),
    "evaluation/write_files.py": ("tests/evaluation/test_files.py", "tests/evaluation/test_file_names.py"),
}
"""By the beginning of a file's path; the longest that fits counts. Doctests of the file itself always do."""


COMPILED = ("evaluation/", "kernels/cache.py", "metric/mean_ap.py", "metric/protocol.py")
"""Files whose tests run with compiled kernels: nothing in them would have to be compiled anew."""


def concerned(file: str) -> tuple[str, ...]:
    """What to run when `file` has changed.

    >>> concerned("losses/ragged.py")
    ('src/stepgrad/losses/ragged.py', 'tests/losses/test_ragged.py')
    """
    fitting = max((start for start in CONCERNED if file.startswith(start)), key=len)
    return tuple(dict.fromkeys([f"src/stepgrad/{file}", *CONCERNED[fitting]]))
