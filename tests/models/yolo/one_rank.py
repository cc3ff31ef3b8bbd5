"""One of several processes that train a YOLO on CPUs, which ultralytics itself does on GPUs only.

RANK, LOCAL_RANK and the like are in the environment. Two things are put in for the GPU: gloo for NCCL, and a
DistributedDataParallel that is told of no device. Validation, which gathers as gloo cannot, is left out.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.models.yolo.small import EASY  # before ultralytics, which then reads the environment


def main(data: str, run: str, size: str) -> None:
    from stepgrad.models.yolo import MAPTrainer
    from stepgrad.models.yolo.trainer import bare_model

    stock_ddp = torch.nn.parallel.DistributedDataParallel

    def ddp(model: torch.nn.Module, device_ids: Any = None, **more: Any) -> torch.nn.Module:
        return stock_ddp(model, **more)

    torch.nn.parallel.DistributedDataParallel = ddp  # type: ignore[assignment, misc]

    class OnCPUs(MAPTrainer.options(start=0, **EASY)):  # type: ignore[misc]
        def __init__(self, *positional: Any, **named: Any) -> None:
            super().__init__(*positional, **named)
            self.world_size = dist.get_world_size()

        def _setup_ddp(self, *_: Any) -> None:
            pass

        def validate(self) -> tuple[dict[str, float], float]:
            return {}, 0.0

        def final_eval(self) -> None:
            pass

    dist.init_process_group("gloo")
    overrides = {"model": "yolov8n.yaml", "data": data, "epochs": 1, "imgsz": int(size), "batch": 4, "device": "cpu"}
    overrides |= {"plots": False, "workers": 0, "project": str(Path(run).parent), "name": Path(run).name}
    overrides |= {"exist_ok": True, "optimizer": "SGD", "lr0": 0.01, "warmup_epochs": 0, "nbs": 4}
    used, maps = [], []

    def note(trainer: Any) -> None:
        used.append(trainer.map_switches[""].weight)
        maps.append(trainer.map_loss_switch.metrics["map"])

    trainer = OnCPUs(overrides=overrides)
    trainer.add_callback("on_train_batch_end", note)
    trainer.train()
    weights = bare_model(trainer.model).state_dict()  # statistics are each process's own
    trained = {name: value for name, value in weights.items() if "running" not in name and "batches" not in name}
    torch.save({"weights": trained, "used": used, "maps": maps}, f"{run}-{dist.get_rank()}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
