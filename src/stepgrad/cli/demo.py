"""`stepgrad demo`: train a small scorer of windows for mAP after NMS on the built-in `shapes`; the mAP climbs."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from torch import Tensor, nn
from torchvision.ops import roi_align

from stepgrad.data import ShapesDataset
from stepgrad.data.base import Target
from stepgrad.errors import ConfigError
from stepgrad.losses.map_loss import MAPLoss
from stepgrad.metric.mean_ap import mean_average_precision

ORIENTATIONS, CELLS = 8, 8
REPORTS = 6  # rows of the table


@dataclass(frozen=True)
class Windows:
    """Described windows and the objects of their images, in memory."""

    features: list[Tensor]  # (N, F) each
    boxes: list[Tensor]  # (N, 4) each
    targets: list[Target]

    def choose(self, images: list[int]) -> Windows:
        return Windows(
            [self.features[i] for i in images], [self.boxes[i] for i in images], [self.targets[i] for i in images]
        )


def describe(image: Tensor, boxes: Tensor) -> Tensor:
    """(N, F) histograms of edge directions over a grid of cells in each window; nothing here is learned."""
    grey = image.float().mean(0) / 255
    dy, dx = torch.gradient(grey)
    angle = torch.atan2(dy, dx) % torch.pi * (ORIENTATIONS / torch.pi)
    bins = torch.arange(ORIENTATIONS, dtype=grey.dtype).view(-1, 1, 1)
    apart = (angle - bins).abs()
    share = (1 - torch.minimum(apart, ORIENTATIONS - apart)).clamp(min=0)
    pooled = roi_align((share * torch.hypot(dx, dy))[None], [boxes], CELLS, aligned=True).flatten(1)
    return pooled.sqrt() / pooled.sqrt().norm(dim=1, keepdim=True).clamp(min=1e-6)


def _draw(split: str, count: int) -> Windows:
    dataset = ShapesDataset(split, length=count)
    boxes = [dataset.windows(i) for i in range(count)]
    pairs = [dataset[i] for i in range(count)]
    return Windows(
        [describe(image, b) for (image, _), b in zip(pairs, boxes, strict=True)], boxes, [t for _, t in pairs]
    )


def demo(seconds: float = 120.0, images: int = 400, batch: int = 32, seed: int = 0) -> int:
    """Train a small scorer on the built-in shapes with mAP after NMS as the loss, and print the mAP as it climbs.

    Args:
        seconds: Train for about this long.
        images: Training images to draw; a fifth as many again are held out.
        batch: Images per step; one mAP is taken over all of them.
        seed: Of the weights and the order of images.
    """
    for name, value, least in (("images", images, 5), ("batch", batch, 1), ("seconds", seconds, 0)):
        if value < least:
            raise ConfigError(f"Expected --{name} to be at least {least} but got {value}.")
    console = Console()
    generator = torch.Generator().manual_seed(seed)
    num_classes = len(ShapesDataset("train", 1).class_names)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = nn.Sequential(
            nn.Linear(ORIENTATIONS * CELLS * CELLS, 128),
            nn.ReLU(),
            nn.Linear(128, num_classes),
        )
    train, held_out = _draw("train", images), _draw("val", max(1, images // 5))
    loss_fn = MAPLoss(num_classes)
    console.print(f"{images} images of shapes, {sum(map(len, train.boxes))} windows; loss: [bold]{loss_fn}[/]")
    _first_call(model, loss_fn, train.choose([0]))
    rows = _train(model, loss_fn, train, held_out, seconds, batch, generator, console)
    console.print(_table(rows))
    console.print(
        f"mAP on {len(held_out.boxes)} held-out images: {100 * rows[0][3]:.1f} before, {100 * rows[-1][3]:.1f} after "
        f"{rows[-1][0]} steps in {rows[-1][1]:.0f} s. The loss is the metric: its gradient passes through NMS."
    )
    return 0


@torch.no_grad()
def _held_out_map(model: nn.Module, held_out: Windows) -> float:
    scores = [model(features) for features in held_out.features]
    return mean_average_precision(scores, held_out.boxes, held_out.targets).map


def _first_call(model: nn.Module, loss_fn: MAPLoss, windows: Windows) -> None:
    """Have the kernels compiled before the clock starts."""
    loss_fn([model(windows.features[0])], windows.boxes, windows.targets).backward()


Row = tuple[int, float, float, float]  # step, seconds, mAP of the last batch, mAP held out


def _train(
    model: nn.Module,
    loss_fn: MAPLoss,
    train: Windows,
    held_out: Windows,
    seconds: float,
    batch: int,
    generator: torch.Generator,
    console: Console,
) -> list[Row]:
    """One readable loop: score, loss, backward, step."""
    optimiser = torch.optim.Adam(model.parameters(), lr=2e-3)
    rows: list[Row] = [(0, 0.0, float("nan"), _held_out_map(model, held_out))]
    columns = [TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn()]
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("training", total=seconds)
        start, step, spent = time.monotonic(), 0, 0.0
        while spent < seconds:
            chosen = train.choose(torch.randperm(len(train.boxes), generator=generator)[:batch].tolist())
            scores = model(torch.cat(chosen.features)).split([len(b) for b in chosen.boxes])
            loss = loss_fn(scores, chosen.boxes, chosen.targets)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            step, spent = step + 1, time.monotonic() - start
            bar.update(task, completed=spent, description=f"step {step}, batch mAP {100 * loss_fn.metrics['map']:.1f}")
            if spent >= seconds * len(rows) / REPORTS:
                rows.append((step, spent, loss_fn.metrics["map"], _held_out_map(model, held_out)))
    return rows


def _table(rows: list[Row]) -> Table:
    table = Table("step", "seconds", "batch mAP", "held-out mAP", title="training for mAP after NMS")
    for step, spent, batch_map, held_out in rows:
        shown = "" if batch_map != batch_map else f"{100 * batch_map:.1f}"
        table.add_row(str(step), f"{spent:.0f}", shown, f"{100 * held_out:.1f}")
    return table
