"""Train a DETR for mAP with the Hugging Face Trainer: with its own loss first, then with mAP too. The logs show batch mAP.

python examples/hf_trainer.py
"""

from __future__ import annotations

import argparse
import tempfile
from typing import Any

import torch
from finetune_detr import build_model, load  # the file next to this one
from transformers import Trainer, TrainingArguments

from stepgrad.models.detr.transformers import train_for_map
from stepgrad.models.frameworks.hf_trainer import MAPCallback


def collate(rows: list[Any]) -> dict[str, Any]:
    return {"pixel_values": torch.stack([pixels for pixels, _ in rows]), "labels": [label for _, label in rows]}


def main(steps: int = 300, switch_at: int = 200, images: int = 32) -> list[dict[str, float]]:
    """The Trainer's log: loss and mean mAP of the batches of every 20 steps."""
    torch.manual_seed(0)
    arguments = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        max_steps=steps,
        per_device_train_batch_size=8,
        learning_rate=1e-3,
        max_grad_norm=0.5,
        lr_scheduler_type="constant",
        logging_steps=20,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
    )
    data: Any = list(zip(*load(images), strict=True))
    trainer = Trainer(train_for_map(build_model()), arguments, data_collator=collate, train_dataset=data)
    MAPCallback(switch_at=switch_at).add_to(trainer)
    trainer.train()
    return [entry for entry in trainer.state.log_history if "batch_map" in entry]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300)
    for entry in main(parser.parse_args().steps):
        print(f"step {entry['step']}: mAP of the training batches {entry['batch_map']:.3f}")
