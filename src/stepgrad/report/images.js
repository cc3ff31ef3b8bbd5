"use strict";
// The browser over all images. Detections are cut by score, each class at its own or at that of the slider; layers, class,
// kind and order choose what is shown. The table of confused classes follows the scores.
(() => {
  const get = (id) => document.getElementById(id);
  if (!get("gallery")) return;
  const data = JSON.parse(get("evidence").textContent);
  const PAGE = 24, CLOSE_UP = 1.5;
  const WORDS = {
    right: "right", missed: "missed", box: "overlaps too little", class: "wrong class", duplicate: "found already",
    background: "nothing there", both: "wrong class, overlaps too little",
  };
  const state = { cuts: data.classes.map(() => OWN), wanted: PAGE, open: null, zoom: 1, pointed: null };

  const percent = (part, whole) => (whole ? (100 * part / whole).toFixed(1) : "–");

  const chosenClass = () => (get("of-class").value === "" ? null : Number(get("of-class").value));

  // The classes that slider and switch are about: the chosen one, or all.
  const concerned = () => (chosenClass() === null ? [...data.classes.keys()] : [chosenClass()]);

  const scoreOf = (label) => (state.cuts[label] === OWN ? data.thresholds[label] : data.scores[state.cuts[label]]);

  function setCuts(cut) {
    for (const label of concerned()) state.cuts[label] = cut;
  }

  function showCuts() {
    const cuts = new Set(concerned().map((label) => state.cuts[label])), [first] = cuts;
    const one = chosenClass() === null ? null : scoreOf(chosenClass());
    get("own").checked = cuts.size === 1 && first === OWN;
    get("threshold").value = cuts.size === 1 && first !== OWN ? first : one === null ? data.level : data.scores.findLastIndex((score) => score <= one);
    get("threshold-value").textContent = one !== null ? String(Number(one.toPrecision(3))) : cuts.size > 1 ? "differs by class"
      : first !== OWN ? data.scores[first].toFixed(2) : chosenClass() === null ? "that of its class" : "none, as nothing is right";
    const rows = data.classes.map((name, label) => `  ${JSON.stringify(name)}: ${JSON.stringify(scoreOf(label))}`);
    const text = `{"thresholds": {\n${rows.join(",\n")}\n}}\n`; // the form that `stepgrad detect --thresholds` reads
    get("thresholds").textContent = text;
    get("download").href = `data:application/json;charset=utf-8,${encodeURIComponent(text)}`;
  }

  function showConfusion() {
    const table = document.querySelector(".matrix");
    if (!table) return;
    const counts = confusionAt(data, state.cuts), totals = {};
    for (const [pair, count] of counts) totals[pair.split(">")[0]] = (totals[pair.split(">")[0]] ?? 0) + count;
    for (const cell of table.querySelectorAll("[data-pair]")) {
      const [object, detection] = cell.dataset.pair.split(">"), count = counts.get(cell.dataset.pair);
      cell.className = count ? (object === detection ? "hit" : "slip") : "";
      if (count) cell.style.setProperty("--share", `${8 + 62 * count / totals[object]}%`);
      cell.textContent = count ? count.toLocaleString("en").replaceAll(",", "\u202f") : "";
    }
    if (get("pairs")) get("pairs").hidden = true; // said of the scores at the start
    if (get("uncounted")) get("uncounted").hidden = !state.cuts.some((cut) => cut !== OWN && cut < data.least);
  }

  function showRates() {
    const { right, wrong, missed } = countsAt(data, state.cuts, chosenClass());
    get("precision").textContent = percent(right, right + wrong);
    get("recall").textContent = percent(right, right + missed);
    get("f1").textContent = percent(2 * right, 2 * right + wrong + missed);
    get("count-right").textContent = right;
    get("count-wrong").textContent = wrong;
    get("count-missed").textContent = missed;
  }

  // Drawing. Names come from data, so they are only ever set as text.

  function make(tag, words = {}, ...children) {
    const made = document.createElement(tag);
    Object.assign(made, words);
    made.append(...children);
    return made;
  }

  function svg(tag, attributes) {
    const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    return made;
  }

  function layersShown() {
    return new Set([...document.querySelectorAll("[name=layer]:checked")].map((input) => input.value));
  }

  function describe(mark) {
    const name = data.classes[mark.label], about = mark.truth?.label ?? mark.label;
    return { name, score: mark.score === null ? "" : mark.score.toFixed(2), verdict: WORDS[mark.kind] + (about === mark.label ? "" : ` (is ${data.classes[about]})`) };
  }

  // The elements that show a detection or an object: a box, or the lines of a mask or an oriented box, or a box and a pose.
  function drawn({ box: [x1, y1, x2, y2], lines }) {
    const place = { x: x1, y: y1, width: Math.max(0, x2 - x1), height: Math.max(0, y2 - y1) };
    const twice = (tag, words) => [svg(tag, { ...words, class: `${words.class ?? ""} halo` }), svg(tag, words)];
    if (!lines) return twice("rect", place);
    if (data.drawn !== "pose") return twice("path", { d: lines.map((line) => `M${line.join(" ")}z`).join("") });
    const points = lines[0].length ? Array.from({ length: lines[0].length / 3 }, (_, k) => lines[0].slice(3 * k, 3 * k + 3)) : [];
    const bones = data.skeleton.filter(([a, b]) => points[a][2] && points[b][2]);
    const dots = (state) => points.filter((point) => point[2] === state).map(([x, y]) => `M${x} ${y}h.01`).join("");
    return [
      ...twice("rect", { ...place, class: "around" }),
      ...twice("path", { d: bones.map(([a, b]) => `M${points[a].slice(0, 2)}L${points[b].slice(0, 2)}`).join(""), class: "bones" }),
      ...twice("path", { d: dots(2), class: "dots" }), ...twice("path", { d: dots(1), class: "dots unsure" }),
    ];
  }

  function draw(one) {
    const [width, height] = one.image.size, shown = layersShown();
    const canvas = svg("svg", { viewBox: `0 0 ${width} ${height}`, class: `boxes ${data.drawn}s`, "aria-hidden": "true" });
    for (const mark of [...one.marks].reverse()) { // the highest scores on top
      if (!shown.has(layerOf(mark.kind))) continue;
      const group = svg("g", { class: `mark ${layerOf(mark.kind)}${mark.dim ? " dim" : ""}` });
      group.append(...drawn(mark));
      mark.group = group;
      canvas.append(group);
    }
    return canvas;
  }

  function picture(one) {
    const [width, height] = one.image.size;
    const frame = make("div", { className: "picture" });
    frame.style.aspectRatio = `${width} / ${height}`;
    if (one.image.src) frame.append(make("img", { src: one.image.src, loading: "lazy", alt: "" }));
    else if (!one.marks.length) frame.append(make("span", { className: "empty", textContent: `no ${data.nouns[1]}` }));
    frame.append(draw(one));
    return frame;
  }

  function inWords({ right, wrong, missed }) {
    return `${right} right · ${wrong} wrong · ${missed} missed`;
  }

  function tile(one) {
    const button = make("button", { type: "button", className: "open" }, picture(one));
    button.setAttribute("aria-label", `image ${one.image.id}: ${inWords(one.counts)}`);
    button.addEventListener("click", () => open(one.place));
    const f = one.f1 === null ? "" : `F1 ${(100 * one.f1).toFixed(1)}`;
    const title = make("b", {}, make("span", { textContent: one.image.id }), make("span", { textContent: f }));
    return make("figure", {}, button, make("figcaption", {}, title, inWords(one.counts)));
  }

  let chosen = [];

  function show() {
    showRates();
    showCuts();
    chosen = chosenImages(data, {
      cuts: state.cuts, label: chosenClass(), kind: get("of-kind").value, text: get("find").value, order: get("order").value,
    });
    get("gallery").replaceChildren(...chosen.slice(0, state.wanted).map(tile));
    get("more").hidden = chosen.length <= state.wanted;
    const shown = Math.min(chosen.length, state.wanted);
    get("shown").textContent = chosen.length ? `${shown} of ${chosen.length} images shown (${data.images.length} in total). Click one to enlarge it.` : "No image matches.";
    if (state.open !== null) showOpen();
  }

  // One image, large.

  function open(place) {
    state.open = place;
    state.zoom = 1;
    showOpen();
    get("viewer").scrollIntoView({ block: "nearest" });
    get("viewer").focus({ preventScroll: true });
  }

  function showOpen() {
    const one = chosen.find((other) => other.place === state.open);
    get("viewer").hidden = !one;
    if (!one) return;
    get("viewer-name").textContent = `image ${one.image.id}`;
    get("viewer-counts").textContent = inWords(one.counts);
    get("stage").replaceChildren(picture(one));
    get("stage").classList.remove("pointing");
    const shown = layersShown();
    get("marks").replaceChildren(...one.marks.filter((mark) => shown.has(layerOf(mark.kind))).map((mark) => entry(one, mark)));
    resize(one);
  }

  function entry(one, mark) {
    const { name, score, verdict } = describe(mark);
    const item = make("li", { tabIndex: 0, className: layerOf(mark.kind) + (mark.dim ? " dim" : "") },
      make("i", { className: layerOf(mark.kind) }), make("b", { textContent: name }), ` ${score} `, make("small", { textContent: verdict }));
    const point = (on) => {
      state.pointed = on ? mark : null;
      item.classList.toggle("pointed", on);
      mark.group.classList.toggle("pointed", on);
      get("stage").classList.toggle("pointing", on);
      if (on && mark.truth) mark.group.before(truth(mark.truth));
      else for (const old of get("stage").querySelectorAll(".truth")) old.remove();
      label(one);
    };
    for (const [name, on] of [["mouseenter", true], ["focus", true], ["mouseleave", false], ["blur", false]]) item.addEventListener(name, () => point(on));
    for (const [name, on] of [["mouseenter", true], ["mouseleave", false]]) mark.group.addEventListener(name, () => point(on));
    item.addEventListener("click", () => lookAt(one, mark));
    return item;
  }

  function truth(object) { // what a detection that is pointed at should have been
    const group = svg("g", { class: "truth" });
    group.append(...drawn(object));
    return group;
  }

  function resize(one) {
    const frame = get("stage-frame"), [width, height] = one.image.size;
    const fit = Math.min(frame.clientWidth, 0.7 * window.innerHeight * width / height);
    get("stage").style.width = `${Math.max(1, fit * state.zoom)}px`;
    label(one);
  }

  // Names beside boxes, as long as they cover neither another name nor a small box; zooming in makes room for more, and
  // the list has them all.
  function label(one) {
    const canvas = get("stage").querySelector(".boxes"), [width, height] = one.image.size;
    for (const old of canvas.querySelectorAll(".name")) old.remove();
    const unit = width / get("stage").clientWidth, size = 12 * unit, taken = [], shown = layersShown();
    const boxes = one.marks.filter((mark) => shown.has(layerOf(mark.kind))).map(({ box: [x1, y1, x2, y2] }) => [x1, y1, x2 - x1, y2 - y1]);
    const order = [...one.marks].sort((a, b) => (b === state.pointed) - (a === state.pointed));
    for (const mark of order) {
      const pointed = mark === state.pointed;
      if (!pointed && (!get("labels").checked || mark.dim || !shown.has(layerOf(mark.kind)))) continue;
      const { name, score } = describe(mark), text = `${name} ${score}`.trim();
      const long = Math.min(width, (0.62 * text.length + 0.7) * size), high = 1.4 * size;
      const small = boxes.filter(([, , w, h]) => w * h < 6 * long * high);
      const chip = placeFor(mark.box, long, high, width, height, [...taken, ...small]);
      if (!chip && !pointed) continue;
      const [x, y, w, h] = chip ?? [mark.box[0], mark.box[1], long, high];
      taken.push([x, y, w, h]);
      const group = svg("g", { class: `name ${layerOf(mark.kind)}` });
      const words = svg("text", { x: x + 0.35 * size, y: y + 1.05 * size });
      words.style.fontSize = `${size}px`;
      words.textContent = text;
      group.append(svg("rect", { x, y, width: w, height: h }), words);
      canvas.append(group);
    }
  }

  function placeFor([x1, y1, , y2], w, h, width, height, taken) {
    const x = Math.min(Math.max(x1, 0), width - w);
    for (const y of [y1 - h, y2, y1]) { // above the box, below it, inside it
      if (y < 0 || y + h > height) continue;
      if (!taken.some(([a, b, c, d]) => x < a + c && a < x + w && y < b + d && b < y + h)) return [x, y, w, h];
    }
    return null;
  }

  function zoom(factor, at = null) {
    const one = chosen.find((other) => other.place === state.open), frame = get("stage-frame");
    const before = get("stage").clientWidth, [px, py] = at ?? [frame.clientWidth / 2, frame.clientHeight / 2];
    state.zoom = Math.min(16, Math.max(1, state.zoom * factor));
    resize(one);
    const grown = get("stage").clientWidth / before;
    frame.scrollTo((frame.scrollLeft + px) * grown - px, (frame.scrollTop + py) * grown - py);
  }

  function lookAt(one, mark) { // bring a box to the middle, large enough to see
    const frame = get("stage-frame"), [x1, y1, x2, y2] = mark.box;
    const share = Math.max((x2 - x1) / one.image.size[0], (y2 - y1) / one.image.size[1]);
    state.zoom = Math.min(16, Math.max(1, 1 / (2 * CLOSE_UP * share || 1)));
    resize(one);
    const scale = get("stage").clientWidth / one.image.size[0];
    frame.scrollTo(scale * (x1 + x2) / 2 - frame.clientWidth / 2, scale * (y1 + y2) / 2 - frame.clientHeight / 2);
  }

  function move(by) {
    const at = chosen.findIndex((one) => one.place === state.open);
    if (chosen[at + by]) open(chosen[at + by].place);
  }

  function close() {
    state.open = null;
    get("viewer").hidden = true;
  }

  data.classes.forEach((name, label) => get("of-class").append(make("option", { value: String(label), textContent: name })));
  let waiting = false;
  get("threshold").addEventListener("input", () => { // numbers at once, boxes when the screen is next drawn
    setCuts(Number(get("threshold").value));
    showRates();
    showCuts();
    if (!waiting) requestAnimationFrame(() => { waiting = false; show(); showConfusion(); });
    waiting = true;
  });
  get("own").addEventListener("change", () => {
    setCuts(get("own").checked ? OWN : Number(get("threshold").value));
    show();
    showConfusion();
  });
  get("copy").addEventListener("click", () => navigator.clipboard.writeText(get("thresholds").textContent)
    .then(() => { get("copy").textContent = "copied"; }, () => getSelection().selectAllChildren(get("thresholds"))));
  const again = () => { state.wanted = PAGE; show(); };
  for (const id of ["of-class", "of-kind", "order"]) get(id).addEventListener("change", again);
  get("find").addEventListener("input", again);
  for (const input of document.querySelectorAll("[name=layer], #labels")) input.addEventListener("change", show);
  get("more").addEventListener("click", () => { state.wanted += PAGE; show(); });
  get("previous").addEventListener("click", () => move(-1));
  get("next").addEventListener("click", () => move(1));
  get("larger").addEventListener("click", () => zoom(1.5));
  get("smaller").addEventListener("click", () => zoom(1 / 1.5));
  get("close").addEventListener("click", close);
  const keys = { ArrowLeft: () => move(-1), ArrowRight: () => move(1), "+": () => zoom(1.5), "-": () => zoom(1 / 1.5), Escape: close };
  get("viewer").addEventListener("keydown", (event) => {
    if (!keys[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    keys[event.key]();
  });
  const inFrame = (event) => {
    const at = get("stage-frame").getBoundingClientRect();
    return [event.clientX - at.left, event.clientY - at.top];
  };
  get("stage-frame").addEventListener("dblclick", (event) => zoom(2, inFrame(event)));
  get("stage-frame").addEventListener("wheel", (event) => { // also what two fingers on a touchpad send
    if (!event.ctrlKey) return;
    event.preventDefault();
    zoom(Math.exp(-event.deltaY / 200), inFrame(event));
  }, { passive: false });
  get("stage-frame").addEventListener("pointermove", (event) => { // drag to move; fingers scroll by themselves
    if (event.buttons === 1 && event.pointerType === "mouse") get("stage-frame").scrollBy(-event.movementX, -event.movementY);
  });
  window.addEventListener("resize", () => { if (state.open !== null) showOpen(); });
  show();
})();
