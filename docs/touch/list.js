// The ranked list: one row per window, by score, with its dot on the axis of scores. Rows are made once per scene, so that
// one keeps the focus and the pointer while it moves up or down the list.
const List = (() => {
  "use strict";
  const { LOW, HIGH } = Scenes;
  const percent = (score) => (100 * (score - LOW)) / (HIGH - LOW);

  function make(parent, tag, name, text = "") {
    const element = document.createElement(tag);
    element.className = name;
    element.textContent = text;
    parent.append(element);
    return element;
  }

  function makeRow(list, name) {
    const row = make(list, "div", "row");
    row.tabIndex = 0;
    row.dataset.window = name;
    row.setAttribute("role", "slider");
    const rank = make(row, "span", "rank");
    make(row, "span", "chip", name);
    const verdict = make(row, "span", "verdict");
    const track = make(row, "div", "track");
    const jumps = make(track, "div", "jumps");
    const arrow = make(track, "i", "arrow");
    const dot = make(track, "i", "dot");
    return { row, rank, verdict, track, jumps, arrow, dot, slope: make(row, "span", "slope") };
  }

  // `to` is where a gradient step takes the score; `steps` are the jumps of AP on its axis, for the chosen row.
  function placeRow(parts, { place, rank, verdict, kind, score, to, slope, chosen, steps }) {
    parts.row.style.setProperty("--place", place);
    parts.row.className = `row ${kind}${chosen ? " chosen" : ""}`;
    parts.rank.textContent = rank;
    parts.verdict.textContent = verdict;
    parts.slope.textContent = slope;
    parts.dot.style.left = `${percent(score)}%`;
    parts.arrow.className = `arrow ${to > score ? "up" : to < score ? "down" : "none"}`;
    // It begins at the rim of the dot and points away from it.
    parts.arrow.style.left = to > score ? `${percent(score)}%` : "auto";
    parts.arrow.style.right = to > score ? "auto" : `${100 - percent(score)}%`;
    parts.arrow.style.width = `${percent(LOW + Math.abs(to - score))}%`;
    parts.jumps.replaceChildren();
    for (const at of steps) make(parts.jumps, "i", "").style.left = `${percent(at)}%`;
  }

  function drawScale(parent) {
    parent.replaceChildren();
    for (let score = LOW; score <= HIGH; score += 2) make(parent, "span", "", String(score)).style.left = `${percent(score)}%`;
    make(parent, "b", "", "score");
  }

  // The score under a pointer.
  function scoreAt(parts, clientX) {
    const { left, width } = parts.track.getBoundingClientRect();
    return LOW + ((clientX - left) / width) * (HIGH - LOW);
  }

  return { makeRow, placeRow, drawScale, scoreAt };
})();
