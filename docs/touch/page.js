// The page itself: what is shown, and what a touch, a key or a button does to it.
(() => {
  "use strict";
  const { LOW, HIGH, WIDTH, HEIGHT, CASES } = Scenes;
  const LARGEST_MOVE = 0.8; // of a gradient step, in units of score: the steepest score moves so far, the others in proportion
  const MIN_STEP = 0.1; // the default of MAPLoss
  const SMALLEST_SIDE = 16; // of a window, in units of the picture

  const byId = (id) => document.getElementById(id);
  const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
  const tidy = (score) => Math.round(clamp(score, LOW, HIGH) * 100) / 100;
  const { signed } = Words;
  const chosenIn = (name) => document.querySelector(`input[name=${name}]:checked`).value;
  const calm = matchMedia("(prefers-reduced-motion: reduce)");

  const state = {
    name: "", // of the scene
    case: "", // of the paper's cases, the one that is shown
    scene: null,
    selected: 0, // the window that the charts are about
    found: null, // what Steps.measure says of the scene
    along: null, // AP along the score of the chosen window
    before: null, // what was found before the last move
    wanted: "radius", // the estimator that was asked for
    moving: 0, // counts moves, so that a later one ends a glide
    scale: 1, // units of the picture per pixel of the screen
  };
  let rows = [], frames = [], grip = null, chartScale = null;

  const options = () => {
    const nms = Number(byId("nms").value);
    return {
      protocol: chosenIn("protocol"),
      nmsThreshold: nms < 1 ? nms : null,
      throughNms: chosenIn("through"),
      radius: Number(byId("radius").value),
      minStep: MIN_STEP,
    };
  };
  // The paper's way shares nearest steps, and the radius has none: there the page falls back to MEE, as MAPLoss does.
  const estimator = () => (chosenIn("through") === "paper" && state.wanted === "radius" ? "mee" : state.wanted);
  const slopes = () => state.found.slopes.map((s) => s[estimator()]);
  const current = () => state.scene.windows[state.selected];

  // Where a gradient step takes each score.
  function afterStep() {
    const steepest = Math.max(...slopes().map(Math.abs));
    const rate = steepest ? LARGEST_MOVE / steepest : 0;
    return state.scene.windows.map((w, b) => clamp(w.score + rate * slopes()[b], LOW, HIGH));
  }

  // ---- showing

  // `message` is a sentence, or makes one once the new AP is known; else the page speaks of the chosen window.
  function refresh(message) {
    state.found = Steps.measure(state.scene, options());
    state.along = Steps.apAlong(state.scene, options(), state.selected);
    const about = () => Words.about(state.scene, state.found, state.selected, slopes()[state.selected]);
    const says = typeof message === "string" ? message : (message ?? about)();
    if (byId("says").textContent !== says) byId("says").textContent = says;
    showNumbers();
    showSettings();
    showWindows();
    showCharts();
  }

  function showNumbers() {
    const ap = state.found.ap, change = state.before ? ap - state.before.ap : 0;
    byId("ap").textContent = ap.toFixed(3);
    byId("ap").dataset.value = ap;
    byId("change").textContent = Words.same(change, 0) ? "" : signed(change);
    byId("change").className = change > 0 ? "rise" : "fall";
    byId("step").disabled = slopes().every((s) => s === 0);
    byId("which").textContent = current().name;
    for (const name of ["radius", "mee", "sde"]) {
      const slope = state.found.slopes[state.selected][name];
      byId(`slope-${name}`).textContent = slope === null ? "–" : signed(slope);
      const input = document.querySelector(`input[name=estimator][value=${name}]`);
      input.disabled = slope === null;
      input.checked = name === estimator();
    }
    byId("how").textContent = Words.how(estimator(), options(), state.along);
    byId("area").textContent = Words.area(options().protocol, curveBefore() !== null);
  }

  function showSettings() {
    byId("nms-value").textContent = options().nmsThreshold === null ? "off" : options().nmsThreshold.toFixed(2);
    byId("radius-value").textContent = options().radius.toFixed(1);
    const press = (selector, key, value) => document.querySelectorAll(selector).forEach((button) =>
      button.setAttribute("aria-pressed", button.dataset[key] === value));
    press("[data-scene]", "scene", state.name);
    press("[data-case]", "case", state.case);
  }

  function showWindows() {
    const { scene, found } = state, { windows } = scene;
    const order = [...windows.keys()].sort((a, b) => windows[b].score - windows[a].score || a - b);
    const counted = found.keep.filter((b) => found.verdicts[b] !== Steps.IGNORED);
    const to = afterStep(), steepest = Math.max(...slopes().map(Math.abs)) || 1;
    const { steps } = state.along, scale = Math.min(state.scale, 1.45); // marks on a phone: not so large that they hide the picture
    windows.forEach((w, b) => {
      const chosen = b === state.selected, rank = counted.indexOf(b) + 1, slope = slopes()[b];
      List.placeRow(rows[b], {
        place: order.indexOf(b), rank: rank || "", verdict: Words.verdict(scene, found, b), kind: found.verdicts[b], score: w.score,
        to: to[b], slope: slope === 0 ? "0" : signed(slope), chosen, steps: chosen ? steps : [],
      });
      Picture.placeWindow(frames[b], w, slope / steepest, scale, `${found.verdicts[b]}${chosen ? " chosen" : ""}`);
      const text = Words.ofSlider(scene, found, b, rank, slope);
      for (const slider of [rows[b].row, frames[b].group]) Svg.set(slider, { "aria-valuenow": w.score, "aria-valuetext": text });
    });
    Picture.placeGrip(grip, current(), scale, found.verdicts[state.selected]);
  }

  // The curve to compare with, if the curve has changed.
  const curveBefore = () => (state.before && String(state.before.filled) !== String(state.found.filled) ? state.before : null);

  function showCharts() {
    const others = new Map();
    state.scene.windows.forEach((w, b) => { if (b !== state.selected) others.set(w.score, (others.get(w.score) ?? "") + w.name); });
    chartScale = Charts.drawSteps(byId("steps"), {
      along: state.along, window: current(), others,
      slopes: state.found.slopes[state.selected], estimator: estimator(), radius: options().radius,
    });
    const levels = Steps.PROTOCOLS[options().protocol].levels;
    Charts.drawCurve(byId("curve"), { found: state.found, before: curveBefore(), levels, selected: state.selected });
  }

  // ---- changing

  const remember = () => { state.before = state.found; };

  function setScore(b, score) {
    state.scene.windows[b].score = tidy(score);
    refresh();
  }

  function moveBox(b, [x1, y1, x2, y2], dx, dy) {
    const right = Math.round(clamp(dx, -x1, WIDTH - x2)), down = Math.round(clamp(dy, -y1, HEIGHT - y2));
    state.scene.windows[b].box = [x1 + right, y1 + down, x2 + right, y2 + down];
    refresh();
  }

  function resizeBox(b, [x1, y1, x2, y2], dx, dy) {
    const right = Math.round(clamp(x2 + dx, x1 + SMALLEST_SIDE, WIDTH));
    const bottom = Math.round(clamp(y2 + dy, y1 + SMALLEST_SIDE, HEIGHT));
    state.scene.windows[b].box = [x1, y1, right, bottom];
    refresh();
  }

  // Scores glide from where they are to where they go, so that one sees who passes whom; `after` speaks at the end.
  function glide(targets, milliseconds, after) {
    const from = state.scene.windows.map((w) => w.score), turn = ++state.moving, start = performance.now();
    const put = (t) => state.scene.windows.forEach((w, b) => {
      w.score = t < 1 ? from[b] + t * (targets[b] - from[b]) : targets[b];
    });
    const frame = (now) => {
      if (turn !== state.moving) return; // something else has moved since
      const t = clamp((now - start) / milliseconds, 0, 1);
      put(t * t * (3 - 2 * t));
      if (t < 1) requestAnimationFrame(frame);
      refresh(t < 1 ? byId("says").textContent : after);
    };
    if (calm.matches) frame(start + milliseconds);
    else requestAnimationFrame(frame);
  }

  function load(name, selected, letter = "") {
    state.moving += 1;
    Object.assign(state, { name, case: letter, scene: Scenes.make[name](), before: null });
    state.selected = state.scene.windows.findIndex((w) => w.name === selected);
    const { windows } = state.scene;
    byId("list").replaceChildren();
    byId("list").style.setProperty("--rows", windows.length);
    rows = windows.map((w) => List.makeRow(byId("list"), w.name));
    ({ frames, grip } = Picture.draw(byId("picture"), state.scene));
    windows.forEach((w, b) => {
      listen(rows[b].row, b);
      listen(frames[b].group, b);
      frames[b].marks.addEventListener("pointerdown", (event) => startDrag(event, frames[b].group, b));
    });
    grip.addEventListener("pointerdown", (event) => startDrag(event, frames[state.selected].group, state.selected));
    refresh();
  }

  function showCase(letter) {
    const { window: name, to, says } = CASES[letter];
    document.querySelector("input[name=protocol][value=voc12]").checked = true;
    byId("nms").value = 0.3;
    load("list", name, letter);
    remember();
    refresh(`(${letter}) ${says}`);
    byId("list").scrollIntoView({ block: "nearest" });
    const targets = state.scene.windows.map((w) => (w.name === name ? to : w.score));
    glide(targets, 1100, () => `(${letter}) ${says} ${changeOfAP()}`);
  }

  const changeOfAP = () => Words.change(state.before.ap, state.found.ap);

  function takeStep() {
    remember();
    glide(afterStep(), 450, changeOfAP);
  }

  // ---- touches and keys

  const KEYS = {
    ArrowRight: 0.1, ArrowUp: 0.1, ArrowLeft: -0.1, ArrowDown: -0.1, PageUp: 1, PageDown: -1, Home: -Infinity, End: Infinity,
  };
  const MOVES = { ArrowRight: [4, 0], ArrowUp: [0, -4], ArrowLeft: [-4, 0], ArrowDown: [0, 4] };
  const GROWTH = { "+": 4, "=": 4, "-": -4 }; // "=" is "+" without Shift on many keyboards

  function listen(slider, b) {
    Svg.set(slider, { "aria-label": `Window ${state.scene.windows[b].name}`, "aria-valuemin": LOW, "aria-valuemax": HIGH });
    slider.addEventListener("focus", () => {
      state.selected = b;
      remember();
      refresh();
    });
    slider.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.altKey || event.metaKey) return; // those are the browser's own
      if (!(event.key in KEYS || event.key in GROWTH)) return;
      event.preventDefault();
      state.moving += 1;
      const { box } = state.scene.windows[b];
      if (event.key in GROWTH) resizeBox(b, box, GROWTH[event.key], GROWTH[event.key]);
      else if (event.shiftKey && event.key in MOVES) moveBox(b, box, ...MOVES[event.key]);
      else setScore(b, state.scene.windows[b].score + KEYS[event.key]);
    });
    slider.addEventListener("pointerdown", (event) => startDrag(event, slider, b));
  }

  function startDrag(event, slider, b) {
    if (event.button !== 0) return;
    event.preventDefault(); // no selection of text; the focus is given by hand
    slider.focus({ preventScroll: true });
    state.selected = b;
    remember();
    if (slider !== rows[b].row) dragBox(event, slider, b);
    else dragScore(event, slider, b, (e) => List.scoreAt(rows[b], e.clientX), rows[b].track.contains(event.target));
  }

  // The score goes as far as the pointer. A mouse may also point to where it should be; a finger may be about to scroll.
  function dragScore(event, element, b, scoreAt, onAxis) {
    const away = state.scene.windows[b].score - scoreAt(event);
    const offset = onAxis && event.pointerType === "mouse" && Math.abs(away) > 0.5 ? 0 : away;
    const change = (e) => setScore(b, scoreAt(e) + offset);
    if (offset === 0) change(event);
    follow(element, event, change);
  }

  function dragBox(event, slider, b) {
    const { box } = state.scene.windows[b], { scale } = state;
    const change = event.target === grip ? resizeBox : moveBox;
    follow(slider, event, (e) => change(b, box, (e.clientX - event.clientX) * scale, (e.clientY - event.clientY) * scale));
  }

  function follow(element, event, change) {
    state.moving += 1;
    element.setPointerCapture(event.pointerId);
    const ends = ["pointerup", "pointercancel"];
    const stop = () => {
      element.removeEventListener("pointermove", change);
      ends.forEach((end) => element.removeEventListener(end, stop));
    };
    element.addEventListener("pointermove", change);
    ends.forEach((end) => element.addEventListener(end, stop));
  }

  byId("steps").addEventListener("pointerdown", (event) => {
    const chart = byId("steps"), scoreAt = (e) => chartScale.back(e.clientX - chart.getBoundingClientRect().left);
    remember();
    dragScore(event, chart, state.selected, scoreAt, true);
  });
  for (const input of document.querySelectorAll("input")) {
    input.addEventListener("input", () => {
      if (input.name === "estimator") state.wanted = input.value;
      state.before = null; // another question: what was before is no comparison
      refresh();
    });
  }
  const FIRST = { meadow: "M", chain: "K", list: "N" }; // the window to look at first
  for (const button of document.querySelectorAll("[data-scene]")) {
    button.addEventListener("click", () => load(button.dataset.scene, FIRST[button.dataset.scene]));
  }
  for (const button of document.querySelectorAll("[data-case]")) {
    button.addEventListener("click", () => showCase(button.dataset.case));
  }
  byId("step").addEventListener("click", takeStep);
  byId("reset").addEventListener("click", () => load(state.name, FIRST[state.name]));
  List.drawScale(byId("scale"));
  const measureScreen = () => { state.scale = WIDTH / byId("picture").clientWidth; };
  measureScreen();
  load("meadow", FIRST.meadow);
  new ResizeObserver(() => {
    measureScreen();
    refresh(byId("says").textContent);
  }).observe(byId("picture"));
})();
