"use strict";
// Labels that are likely wrong, each with its picture, to accept or to reject. The block #review holds the review to export.
(() => {
  const get = (id) => document.getElementById(id);
  if (!get("candidates")) return;
  const data = JSON.parse(get("review").textContent), key = `stepgrad review ${data.labels} ${data.changes.length}`;
  const WORDS = {
    add: (one) => `add ${one.class}`, swap: (one) => `${one.now} is ${one.class}`,
    redraw: (one) => `redraw ${one.class}`, remove: (one) => `remove ${one.class}`,
  };

  // Decisions are kept by the browser, if it lets a page do so, and in the exported file.
  const stored = (() => { try { return JSON.parse(localStorage.getItem(key)) ?? []; } catch { return []; } })();
  const decided = data.changes.map((_, place) => stored[place] ?? null);

  function make(tag, words = {}, ...children) { // names come from data, so they are only ever set as text
    const made = document.createElement(tag);
    Object.assign(made, words);
    made.append(...children);
    return made;
  }

  function rectangle(kind, [x1, y1, x2, y2]) {
    const group = document.createElementNS("http://www.w3.org/2000/svg", "g");
    group.setAttribute("class", `mark ${kind}`);
    for (const halo of [true, false]) {
      const rect = document.createElementNS("http://www.w3.org/2000/svg", "rect");
      const place = { x: x1, y: y1, width: Math.max(0, x2 - x1), height: Math.max(0, y2 - y1), class: halo ? "halo" : "" };
      for (const [name, value] of Object.entries(place)) rect.setAttribute(name, value);
      group.append(rect);
    }
    return group;
  }

  function picture(one) {
    const image = data.pictures[one.picture], frame = make("div", { className: "picture" });
    const [width, height] = image.size, svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    frame.style.aspectRatio = `${width} / ${height}`;
    if (image.src) frame.append(make("img", { src: image.src, loading: "lazy", alt: "" }));
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.setAttribute("class", "boxes");
    svg.setAttribute("aria-hidden", "true");
    image.labels.forEach((box, place) => { if (place !== one.object) svg.append(rectangle("other", box)); });
    if (one.object !== null) svg.append(rectangle("label", image.labels[one.object]));
    if (one.found) svg.append(rectangle("wrong", one.found));
    frame.append(svg);
    return frame;
  }

  const cards = data.changes.map((one, place) => {
    const score = one.score === null ? "no detection" : `score ${Number(one.score.toPrecision(3))}`;
    const words = `image ${one.image} · ${score} · mAP ${(100 * one.gain).toFixed(3)} higher`;
    const buttons = ["accept", "reject"].map((word) => make("button", {
      type: "button", textContent: word, onclick: () => decide(place, decided[place] === (word === "accept") ? null : word === "accept"),
    }));
    const caption = make("figcaption", {}, make("b", { textContent: `${place + 1}. ${WORDS[one.kind](one)}` }),
      make("small", { textContent: words }), make("span", { className: "buttons" }, ...buttons));
    return { buttons, figure: make("figure", { className: "card candidate" }, picture(one), caption) };
  });

  function decide(place, verdict) {
    decided[place] = verdict;
    try { localStorage.setItem(key, JSON.stringify(decided)); } catch { /* kept in this tab only */ }
    show();
  }

  function show() {
    const kind = get("of-kind").value, open = get("open-only").checked;
    cards.forEach(({ figure, buttons }, place) => {
      const verdict = decided[place];
      figure.hidden = (kind !== "" && data.changes[place].kind !== kind) || (open && verdict !== null);
      figure.className = `card candidate${verdict === null ? "" : verdict ? " accepted" : " rejected"}`;
      buttons.forEach((button, n) => button.setAttribute("aria-pressed", String(verdict === (n === 0))));
    });
    const accepted = decided.filter((verdict) => verdict === true).length, rejected = decided.filter((verdict) => verdict === false).length;
    get("tally").textContent = `${accepted} accepted, ${rejected} rejected, ${decided.length - accepted - rejected} left`;
    const changes = data.changes.map(({ picture: _, found: __, now: ___, ...change }, place) => ({ ...change, accepted: decided[place] === true }));
    const text = JSON.stringify({ file: data.file, labels: data.labels, changes }, null, 1);
    get("export-review").href = `data:application/json;charset=utf-8,${encodeURIComponent(text)}`;
  }

  get("candidates").append(...cards.map(({ figure }) => figure));
  get("of-kind").onchange = get("open-only").onchange = show;
  show();
})();
