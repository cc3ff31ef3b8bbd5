"""The page one can touch, in a browser, and what is done to it."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from docs.touch.build import PAGE
from tests.docs.touch_scenes import TouchScene
from tests.report.browser import Browser
from tests.scenes import Batch

READ_WINDOWS = """[...document.querySelectorAll("g[data-window]")].map(g => {
  const at = name => Number(g.querySelector(".frame").getAttribute(name));
  return {name: g.dataset.window, score: Number(g.getAttribute("aria-valuenow")), text: g.getAttribute("aria-valuetext"),
          box: [at("x"), at("y"), at("x") + at("width"), at("y") + at("height")]};})"""


class Touched:
    """The page in a browser, as somebody who does not want motion sees it: all moves are over at once."""

    def __init__(self, browser: Browser, width: int = 1280, scheme: str = "light") -> None:
        self.browser = browser
        browser.open(PAGE, width=width, height=800, scheme=scheme)
        wishes = {"prefers-color-scheme": scheme, "prefers-reduced-motion": "reduce"}
        browser.call("Emulation.setEmulatedMedia", features=[{"name": n, "value": v} for n, v in wishes.items()])

    def click(self, selector: str) -> None:
        self.browser.run(f"document.querySelector({json.dumps(selector)}).click()")

    def text(self, selector: str) -> str:
        return str(self.browser.run(f"document.querySelector({json.dumps(selector)}).textContent"))

    @property
    def ap(self) -> float:
        return float(self.browser.run("document.querySelector('#ap').dataset.value"))

    @property
    def windows(self) -> dict[str, dict[str, Any]]:
        return {window["name"]: window for window in self.browser.run(READ_WINDOWS)}

    def scene(self, name: str, protocol: str = "voc12", nms: float | None = 0.3, radius: float = 3.0) -> TouchScene:
        """What is on the screen now, for the library."""
        objects = self.browser.run(f"Scenes.make.{name}().objects")
        target = {
            "boxes": np.array([o["box"] for o in objects], dtype=np.float64),
            "labels": np.zeros(len(objects), dtype=np.int64),
            "difficult": np.array([o["difficult"] for o in objects]),
        }
        windows = self.windows.values()
        scores, boxes = (np.array([w[key] for w in windows], dtype=np.float64) for key in ("score", "box"))
        return TouchScene(Batch([scores[:, None]], [boxes], [target]), protocol, nms, radius, min_step=0.1)

    def press(self, key: str, shift: bool = False) -> None:
        modifiers = 8 if shift else 0
        for kind in ("rawKeyDown", "keyUp"):
            self.browser.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, modifiers=modifiers)

    def focus(self, selector: str) -> None:
        self.browser.run(f"document.querySelector({json.dumps(selector)}).focus()")

    def middle_of(self, selector: str) -> tuple[float, float]:
        x, y = self.browser.run(
            f"""(() => {{ const e = document.querySelector({json.dumps(selector)}); e.scrollIntoView({{block: "center"}});
            const r = e.getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2]; }})()"""
        )
        return x, y

    def drag(self, selector: str, dx: float, dy: float = 0.0) -> None:
        x, y = self.middle_of(selector)
        for kind, share in (("mousePressed", 0.0), ("mouseMoved", 0.5), ("mouseMoved", 1.0), ("mouseReleased", 1.0)):
            self.browser.call(
                "Input.dispatchMouseEvent", type=kind, x=x + share * dx, y=y + share * dy, button="left", clickCount=1
            )

    def drag_with_a_finger(self, selector: str, dx: float, dy: float = 0.0) -> None:
        x, y = self.middle_of(selector)
        for kind, share in (("touchStart", 0.0), ("touchMove", 0.3), ("touchMove", 0.7), ("touchMove", 1.0)):
            point = {"x": x + share * dx, "y": y + share * dy}
            self.browser.call("Input.dispatchTouchEvent", type=kind, touchPoints=[point])
        self.browser.call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])
