"""Which tests concern which file. The quickest come first: a mutant's tests stop at the first failure.

A file with kernels is tested with all kernels run as Python, so tests of large scenes, which would take minutes then, are
left out. The tests of a file without any use the compiled ones: nothing would have to be compiled anew.
"""

from __future__ import annotations

_SCENES = ("tests/kernels/test_small_scenes.py",)
_METRIC = ("tests/kernels/test_small_parts.py", "tests/kernels/test_scene.py", "tests/kernels/test_nms.py", *_SCENES)
_KERNELS = (
    *("tests/kernels/test_small_parts.py", "tests/kernels/test_edited_ap.py", "tests/kernels/test_scene.py"),
    "tests/kernels/test_cascade.py",
    *("tests/kernels/test_rank_steps.py", "tests/kernels/test_replay.py", *_SCENES),
    *("tests/steps/test_map_steps.py", "tests/kernels/test_nms.py"),
)
_LOSS = (
    *("tests/losses/test_map_loss_edges.py", "tests/losses/test_empties.py", "tests/losses/test_bad_input.py"),
    *("tests/losses/test_options.py", "tests/losses/test_map_loss.py", "tests/losses/test_likely_mistakes.py"),
)
_BASELINES = (
    *("tests/losses/test_baselines_windows.py", "tests/losses/test_baselines_smooth.py"),
    *("tests/losses/test_baselines_structured.py", "tests/losses/test_baselines_interface.py"),
)
_RANKING = (
    *("tests/losses/ranking/test_moves.py", "tests/losses/ranking/test_steps_equal_brute_force.py"),
    *("tests/losses/ranking/test_input.py", "tests/losses/ranking/test_laws.py"),
)
_RANKS = ("tests/losses/test_shards.py", "tests/losses/test_threads_as_ranks.py")
_SEARCH = (
    *("tests/steps/test_outward.py", "tests/steps/test_find_steps.py", "tests/steps/test_bad_input.py"),
    *("tests/steps/test_step_function.py", "tests/steps/test_pseudogradient.py"),
)
_EVALUATOR = (
    "tests/evaluation/test_small_parts.py",
    *("tests/evaluation/test_evaluator.py", "tests/evaluation/test_bad_input.py", "tests/evaluation/test_files.py"),
    *("tests/evaluation/test_evaluator_differences.py", "tests/evaluation/test_compare.py"),
)

_METRICS = ("tests/losses/test_detection_loss.py", "tests/steps/test_metric_steps.py")
_COMPILING = ("tests/kernels/test_linking.py", "tests/kernels/test_warmup.py")

CONCERNED: dict[str, tuple[str, ...]] = {
    "kernels/": _KERNELS,
    "kernels/balance.py": ("tests/losses/test_balance.py", "tests/steps/test_gradient_laws.py"),
    "kernels/cache.py": ("tests/kernels/test_cache_damage.py", "tests/kernels/test_cache_folder.py"),
    "kernels/dispatch.py": _COMPILING,
    "kernels/linking.py": _COMPILING,
    "kernels/uses.py": _COMPILING,
    "kernels/warmup.py": _COMPILING,
    "kernels/list_records.py": _RANKING[:2],
    "kernels/metric_code.py": _METRICS,
    "kernels/edited_metric.py": _METRICS,
    "metric/": (
        "tests/metric/test_arrange.py",
        *_METRIC,
        "tests/metric/test_mean_average_precision.py",
        "tests/evaluation/test_evaluator.py",
    ),
    "metric/batch.py": ("tests/metric/test_batch.py", *_LOSS, "tests/losses/test_empty_windows.py", *_METRIC),
    "metric/areas.py": (*_METRICS, "tests/evaluation/test_metrics.py"),
    "metric/cut.py": _METRICS,
    "metric/forms.py": ("tests/losses/test_forms.py",),
    "metric/list_metric.py": ("tests/metric/test_list_metrics.py", *_METRICS),
    "metric/metrics.py": ("tests/metric/test_list_metrics.py", *_METRICS),
    "metric/named_metrics.py": ("tests/metric/test_list_metrics.py",),
    "metric/over_classes.py": _METRICS,
    "metric/boxes.py": (*_BASELINES[:1], "tests/report/test_found.py"),
    "metric/mean_ap.py": (
        *_LOSS,
        *("tests/kernels/test_small_parts.py", "tests/metric/test_mean_average_precision.py"),
        "tests/evaluation/test_evaluator.py",
    ),
    "metric/arithmetic.py": ("tests/evaluation/test_ultralytics.py", "tests/evaluation/test_torchmetrics.py"),
    "metric/protocol.py": (
        "tests/evaluation/test_ultralytics.py",
        "tests/kernels/test_small_parts.py",
        *("tests/evaluation/test_compare.py", "tests/evaluation/test_evaluator_differences.py"),
    ),
    "steps/": _SEARCH,
    "steps/own_steps.py": _METRICS,
    "steps/estimators.py": (*_SCENES, "tests/steps/test_estimators.py", "tests/steps/test_map_steps.py"),
    "steps/map_steps.py": (*_SCENES, *_LOSS, "tests/steps/test_map_steps.py", "tests/losses/test_balance.py"),
    "layers/": ("tests/layers", "tests/steps"),
    "losses/": (*_LOSS, "tests/losses/test_balance.py"),
    "losses/detection_loss.py": _METRICS,
    "losses/collectives.py": _RANKS,
    "losses/distributed.py": _RANKS,
    "losses/shards.py": _RANKS,
    "losses/large_batch.py": ("tests/losses/test_large_batch.py",),
    "losses/likely_mistakes.py": ("tests/losses/test_likely_mistakes.py",),
    "losses/ragged.py": ("tests/losses/test_ragged.py",),
    "losses/ragged_ranks.py": ("tests/losses/test_ragged_ranks.py",),
    "losses/score_memory.py": ("tests/losses/test_score_memory.py",),
    "losses/baselines/": _BASELINES,
    "losses/ranking/": _RANKING,
    "evaluation/": _EVALUATOR,
    "evaluation/result.py": (*_EVALUATOR, "tests/evaluation/test_best_f1.py"),
    "evaluation/records.py": (*_EVALUATOR, "tests/evaluation/test_parity_decimals.py"),
    "evaluation/draw_difference.py": ("tests/evaluation/test_draw_difference.py",),
    "evaluation/errors_by_type.py": ("tests/evaluation/test_errors_by_type.py",),
    "evaluation/export.py": ("tests/evaluation/test_export.py",),
    "evaluation/federated.py": ("tests/evaluation/test_lvis.py",),
    "evaluation/found.py": ("tests/report/test_found.py", "tests/evaluation/test_errors_by_type.py"),
    "evaluation/judge.py": (*_EVALUATOR, "tests/evaluation/test_ultralytics.py"),
    "evaluation/plots.py": ("tests/evaluation/test_plots.py", "tests/evaluation/test_errors_by_type.py"),
    "evaluation/read_yolo.py": ("tests/evaluation/test_yolo_files.py",),
    "evaluation/coco_numbers.py": (
        *("tests/evaluation/test_evaluator_differences.py", "tests/evaluation/test_evaluator.py"),
        "tests/evaluation/test_fixtures.py::test_coco_sample_equals_pycocotools_twelve_numbers",
    ),
    "evaluation/read_files.py": ("tests/evaluation/test_small_parts.py", "tests/evaluation/test_files.py"),
    "evaluation/write_files.py": ("tests/evaluation/test_files.py", "tests/evaluation/test_file_names.py"),
}
"""By the beginning of a file's path; the longest that fits counts. Doctests of the file itself always do."""


def has_kernels(file: str) -> bool:
    """Whether a fault in `file` would have to be compiled."""
    compiles = "kernels/cache.py", *(name for name, tests in CONCERNED.items() if tests == _COMPILING)
    return (file.startswith("kernels/") and file not in compiles) or file == "losses/baselines/max_oracle.py"


def concerned(file: str) -> tuple[str, ...]:
    """What to run when `file` has changed.

    >>> concerned("losses/ragged.py")
    ('src/stepgrad/losses/ragged.py', 'tests/losses/test_ragged.py')
    """
    fitting = max((start for start in CONCERNED if file.startswith(start)), key=len)
    return tuple(dict.fromkeys([f"src/stepgrad/{file}", *CONCERNED[fitting]]))
