"""Which tests concern which file. Of these a mutant meets those that run its line (`clean.py`).

A file with kernels is tested with all kernels run as Python, so tests of large scenes, which would take minutes then, are
left out. The tests of a file without any use the compiled ones: nothing would have to be compiled anew.
"""

from __future__ import annotations

from pathlib import Path

_ROOT = Path(__file__).parents[2]
_SCENES = ("tests/engine/test_small_scenes.py",)
_METRIC = ("tests/engine/test_matching.py", "tests/engine/test_nms.py", *_SCENES)
_KERNELS = (
    *("tests/engine/test_overlaps.py", "tests/engine/test_nms.py", "tests/engine/test_worlds.py"),
    *("tests/engine/test_matching.py", "tests/engine/test_lists.py", *_SCENES),
    "tests/steps/test_map_steps.py",
)
_LOSS = (
    *("tests/losses/test_map_loss_edges.py", "tests/losses/test_empties.py", "tests/losses/test_bad_input.py"),
    *("tests/losses/test_options.py", "tests/losses/test_map_loss.py", "tests/losses/test_likely_mistakes.py"),
    "tests/losses/test_brute_force.py",
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

_TASK_FILES = "tests/evaluation/test_task_files.py"
_FOLDER = "tests/data/test_"
_YOLO_FOLDERS = (
    *(f"{_FOLDER}{name}.py" for name in ("yolo", "yolo_doctor", "doctor_cases", "load", "convert", "task_data")),
)
_DOCTOR = (*(f"{_FOLDER}{name}.py" for name in ("doctor", "doctor_cases", "yolo_doctor")), "tests/cli/test_doctor.py")
_DATA = (
    *(f"{_FOLDER}{name}.py" for name in ("coco", "voc", "yolo", "load", "images", "convert", "outside", "task_data")),
    *_DOCTOR,
)
_HEADS = (
    *("tests/models/new_head/test_train_new_head.py", "tests/models/new_head/test_torchvision.py"),
    "tests/models/new_head/test_transformers.py",
)
_FINE_TUNING = (
    *(
        "tests/models/fine_tuning/test_outputs.py",
        "tests/models/fine_tuning/test_training.py",
        "tests/models/fine_tuning/test_finetune.py",
    ),
    "tests/models/fine_tuning/test_choice.py",
    "tests/models/fine_tuning/test_shaped.py",
)
_MODELS = (
    *("tests/models/test_set_criterion.py", "tests/models/test_switch.py"),
    *("tests/models/test_keep_best.py", "tests/models/test_torchvision_train.py"),
    *("tests/models/test_left_out.py", "tests/models/test_torchvision_ignored.py", "tests/models/test_detr_ignored.py"),
    *("tests/models/test_transformers.py", "tests/models/test_auto_weight.py"),
    *("tests/models/test_lightning.py", "tests/models/test_hf_trainer.py"),
)
_YOLO = (
    *("tests/models/yolo/test_options.py", "tests/models/yolo/test_loss.py"),
    *("tests/models/yolo/test_new_head.py", "tests/models/yolo/test_training.py", "tests/models/yolo/test_shapes.py"),
)

_METRICS = ("tests/losses/test_detection_loss.py", "tests/steps/test_metric_steps.py")
_OVERLAPS = ("tests/overlaps/test_kinds.py", "tests/overlaps/test_batches.py")
_COMPILING = ("tests/engine/test_compiling.py",)

CONCERNED: dict[str, tuple[str, ...]] = {
    "engine/": _KERNELS,
    "engine/accelerator.py": _COMPILING,
    "engine/balance.py": ("tests/losses/test_balance.py", "tests/steps/test_gradient_laws.py"),
    "engine/cache.py": ("tests/engine/test_cache_damage.py", "tests/engine/test_cache_folder.py"),
    "engine/classes.py": (*_SCENES, "tests/steps/test_map_steps.py", "tests/losses/test_balance.py"),
    "engine/jit.py": (*_COMPILING, "tests/engine/test_compilation_notice.py"),
    "engine/lanes.py": ("tests/engine/test_lanes.py", "tests/evaluation/test_intervals.py"),
    "engine/own_metric.py": _METRICS,
    **{f"engine/{name}.py": _OVERLAPS for name in ("close", "filled", "poses", "polygons", "runs")},
    "engine/resample.py": ("tests/evaluation/test_intervals.py",),
    "metric/": (
        *_METRIC,
        "tests/metric/test_mean_average_precision.py",
        "tests/evaluation/test_evaluator.py",
    ),
    "metric/batch.py": ("tests/metric/test_batch.py", *_LOSS, "tests/losses/test_empty_windows.py", *_METRIC),
    "metric/forms.py": ("tests/losses/test_forms.py",),
    "metric/list_metric.py": ("tests/metric/test_list_metrics.py", *_METRICS),
    "metric/metrics.py": ("tests/metric/test_list_metrics.py", *_METRICS),
    "metric/options.py": ("tests/metric/test_list_metrics.py", "tests/losses/test_options.py"),
    "metric/over_classes.py": _METRICS,
    "metric/boxes.py": (
        "tests/metric/test_measurable.py",
        "tests/experiments/baselines/test_definitions.py",
        "tests/evaluation/test_found.py",
    ),
    "metric/protocol.py": (
        "tests/evaluation/test_ultralytics.py",
        *("tests/evaluation/test_compare.py", "tests/evaluation/test_evaluator_differences.py"),
    ),
    "steps/": _SEARCH,
    "steps/estimators.py": (*_SCENES, "tests/steps/test_estimators.py", "tests/steps/test_map_steps.py"),
    "steps/layers/": ("tests/steps/layers", "tests/steps"),
    "losses/": (*_LOSS, "tests/losses/test_balance.py"),
    "losses/detection.py": (*_LOSS, *_METRICS),
    "losses/functional.py": (*_LOSS, "tests/metric/test_mean_average_precision.py"),
    "losses/distributed.py": _RANKS,
    "losses/shards.py": (*_RANKS, "tests/losses/test_ragged_ranks.py"),
    "losses/large_batch.py": ("tests/losses/test_large_batch.py",),
    "losses/likely_mistakes.py": ("tests/losses/test_likely_mistakes.py",),
    "losses/started.py": ("tests/losses/test_started.py",),
    "check_device/": ("tests/accelerators/test_check_device.py", "tests/accelerators/test_transfers.py"),
    "losses/ragged.py": ("tests/losses/test_ragged.py",),
    "losses/ranking/": _RANKING,
    "deploy/": ("tests/deploy",),
    "evaluation/edges.py": ("tests/evaluation/test_edges.py",),
    "evaluation/seen_shapes.py": ("tests/evaluation/test_seen_shapes.py",),
    "evaluation/": _EVALUATOR,
    "evaluation/result.py": (*_EVALUATOR, "tests/evaluation/test_best_f1.py"),
    "evaluation/records.py": (*_EVALUATOR, "tests/evaluation/test_parity_decimals.py"),
    "evaluation/flatten.py": _EVALUATOR,
    "evaluation/draw_difference.py": ("tests/evaluation/test_draw_difference.py",),
    "evaluation/errors_by_type.py": (
        "tests/evaluation/test_errors_by_type.py",
        "tests/evaluation/test_errors_by_task.py",
    ),
    "evaluation/outlines.py": ("tests/report/test_tasks.py",),
    "evaluation/label_errors.py": ("tests/evaluation/test_label_errors.py",),
    "data/review.py": ("tests/cli/test_doctor_labels.py",),
    "evaluation/explain.py": ("tests/evaluation/test_explain.py",),
    "evaluation/export.py": ("tests/evaluation/test_export.py",),
    "evaluation/federated.py": ("tests/evaluation/test_lvis.py",),
    "data/bulk_results.py": ("tests/data/test_bulk_results.py",),
    "data/judged_files.py": (*("tests/evaluation/test_lvis.py", "tests/evaluation/test_files.py"), _TASK_FILES),
    "data/segments.py": ("tests/evaluation/test_segment_files.py",),
    "data/shape_fields.py": (_TASK_FILES, "tests/data/test_task_data.py"),
    "evaluation/counted.py": (
        *("tests/evaluation/test_found.py", "tests/evaluation/test_errors_by_type.py"),
        "tests/evaluation/test_errors_by_task.py",
    ),
    "evaluation/likely_mistakes.py": ("tests/evaluation/test_likely_mistakes.py",),
    "evaluation/other_readings.py": ("tests/evaluation/test_likely_mistakes.py",),
    "evaluation/judge.py": (*_EVALUATOR, "tests/evaluation/test_ultralytics.py"),
    "evaluation/plots.py": ("tests/evaluation/test_plots.py", "tests/evaluation/test_errors_by_type.py"),
    "data/detection_rows.py": (
        *("tests/evaluation/test_small_parts.py", "tests/evaluation/test_files.py"),
        _TASK_FILES,
    ),
    "data/read_yolo_detections.py": ("tests/evaluation/test_yolo_files.py", "tests/data/test_task_data.py"),
    "evaluation/coco_numbers.py": (
        *("tests/evaluation/test_evaluator_differences.py", "tests/evaluation/test_evaluator.py"),
        "tests/evaluation/test_fixtures.py::test_coco_sample_equals_pycocotools_twelve_numbers",
    ),
    "data/read_detections.py": (
        *("tests/evaluation/test_small_parts.py", "tests/evaluation/test_files.py"),
        _TASK_FILES,
    ),
    "data/write_detections.py": ("tests/evaluation/test_files.py", "tests/evaluation/test_file_names.py"),
    "models/fine_tuning/": _FINE_TUNING,
    "models/rescore/": ("tests/models/rescore", "tests/cli/test_rescore.py"),
    "models/new_head/": _HEADS,
    "models/": _MODELS,
    "models/demo/": ("tests/models/demo", "tests/cli/test_demo.py"),
    "models/detr/frozen.py": _HEADS,
    "models/exported/": ("tests/models/exported",),
    "models/frameworks/torchmetrics.py": ("tests/models/test_torchmetrics.py",),
    "models/torchvision/": ("tests/models/test_torchvision_lists.py", *_MODELS, *_HEADS),
    "models/yolo/": _YOLO,
    "data/": _DATA,
    "data/yolo": (*_YOLO_FOLDERS, "tests/data/test_outside.py"),
    "data/proposals/": (
        "tests/data/test_proposals.py",
        "tests/data/test_doctor.py",
        "tests/data/test_proposal_cache.py",
    ),
    "data/shapes/": ("tests/data/test_shapes.py", "tests/data/test_endless.py"),
}
"""By the beginning of a file's path; the longest that fits counts. Doctests of the file's folder always do."""


WIDER: dict[str, tuple[str, ...]] = {
    "engine": (*_METRICS, "tests/losses/test_balance.py", "tests/steps/layers/test_layers_equal_brute_force.py"),
    "metric": ("tests/metric", "tests/losses", "tests/evaluation", "tests/steps"),
    "steps": ("tests/steps", "tests/losses"),
    "losses": ("tests/losses", "tests/models"),
    "check_device": ("tests/accelerators", "tests/losses"),
    "deploy": ("tests/deploy", "tests/cli"),
    "evaluation": ("tests/evaluation", "tests/cli"),
    "models": ("tests/models", "tests/cli"),
    "data": ("tests/data", "tests/evaluation", "tests/cli", "tests/detector"),
}
"""By folder: where else to look if the tests that concern a file do not notice. Whole folders of tests; not those that start a
browser, which needs more memory than a child has."""
TOO_SLOW_AS_PYTHON = (
    "tests/steps/test_metric_steps.py::test_hundreds_of_true_positives_are_passed_over_in_blocks_exactly",
)


def has_kernels(file: str) -> bool:
    """Whether a fault in `file` would have to be compiled."""
    compiles = "engine/cache.py", *(name for name, tests in CONCERNED.items() if tests == _COMPILING)
    return file.startswith("engine/") and file not in compiles


def needs_yolo(file: str) -> bool:
    """Whether the tests of `file` need ultralytics."""
    return _tests(file) == _YOLO


def concerned(file: str) -> tuple[str, ...]:
    """What to run when `file` has changed.

    >>> concerned("losses/ragged.py")
    ('src/stepgrad/losses', 'tests/losses/test_ragged.py')
    """
    return tuple(dict.fromkeys([f"src/stepgrad/{file.split('/')[0]}", *_tests(file)]))


def wider(file: str) -> tuple[str, ...]:
    """What to run besides when those notice nothing.

    >>> wider("engine/nms.py")[:2]
    ('tests/losses/test_detection_loss.py', 'tests/steps/test_metric_steps.py')
    """
    places = [_ROOT / place for place in WIDER[file.split("/")[0]]]
    files = [found for place in places for found in (sorted(place.rglob("test_*.py")) if place.is_dir() else [place])]
    names = [str(found.relative_to(_ROOT)) for found in files]
    known = concerned(file)
    return tuple(name for name in names if name not in known and "/yolo/" not in name)


def _tests(file: str) -> tuple[str, ...]:
    return CONCERNED[max((start for start in CONCERNED if file.startswith(start)), key=len)]
