// Draws the picture: a meadow, its objects and the windows on them. `Svg.add` makes elements for the charts as well.
const Svg = (() => {
  "use strict";
  function add(parent, name, attributes = {}, text = "") {
    const element = document.createElementNS("http://www.w3.org/2000/svg", name);
    set(element, attributes);
    if (text !== "") element.textContent = text;
    parent.append(element);
    return element;
  }
  function set(element, attributes) {
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  }
  const line = (points) => points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(2)} ${y.toFixed(2)}`).join("");
  return { add, set, line };
})();

const Picture = (() => {
  "use strict";
  const { WIDTH, HEIGHT } = Scenes;

  // Each thing is drawn in a square of 100 by 100, which its box stretches.
  const THINGS = {
    sheep: `<g class="leg"><rect x="27" y="70" width="7" height="28" rx="3"/><rect x="39" y="72" width="7" height="26" rx="3"/>
      <rect x="61" y="72" width="7" height="26" rx="3"/><rect x="73" y="70" width="7" height="28" rx="3"/></g>
      <g class="wool"><circle cx="34" cy="38" r="18"/><circle cx="54" cy="30" r="20"/><circle cx="74" cy="38" r="18"/>
      <circle cx="32" cy="56" r="18"/><circle cx="54" cy="60" r="20"/><circle cx="78" cy="56" r="19"/><ellipse cx="54" cy="47" rx="34" ry="26"/></g>
      <g class="face"><ellipse cx="16" cy="42" rx="13" ry="18"/><ellipse cx="30" cy="32" rx="9" ry="4.5" transform="rotate(-18 30 32)"/></g>
      <circle class="eye" cx="12" cy="38" r="2.4"/>`,
    sun: `<circle class="sun" cx="50" cy="50" r="44"/>`,
    cloud: `<g class="cloud"><ellipse cx="30" cy="62" rx="28" ry="28"/><ellipse cx="54" cy="44" rx="28" ry="36"/>
      <ellipse cx="76" cy="64" rx="22" ry="26"/></g>`,
    tree: `<rect class="trunk" x="43" y="62" width="14" height="38" rx="3"/>
      <g class="leaf"><circle cx="50" cy="28" r="27"/><circle cx="28" cy="48" r="25"/><circle cx="72" cy="48" r="25"/></g>`,
    house: `<rect class="wall" x="12" y="44" width="76" height="56"/><path class="roof" d="M2 48 50 4 98 48Z"/>
      <rect class="door" x="42" y="66" width="18" height="34"/>
      <rect class="pane" x="20" y="58" width="15" height="16"/><rect class="pane" x="67" y="58" width="15" height="16"/>`,
    bush: `<g class="leaf"><circle cx="26" cy="66" r="25"/><circle cx="52" cy="50" r="32"/><circle cx="76" cy="66" r="24"/>
      <rect x="10" y="66" width="80" height="30" rx="14"/></g>`,
    rock: `<path class="rock" d="M6 96 14 52 38 14 68 10 92 46 97 96Z"/>
      <path class="facet" d="M38 14 46 56 14 52ZM68 10 46 56 80 96 97 96 92 46Z"/>`,
  };

  const stretched = (kind, [x1, y1, x2, y2]) =>
    `<g transform="translate(${x1} ${y1}) scale(${(x2 - x1) / 100} ${(y2 - y1) / 100})">${THINGS[kind]}</g>`;

  function drawGround(svg, scene) {
    const ground = Svg.add(svg, "g", { "aria-hidden": "true" });
    ground.innerHTML = `<rect class="sky" width="${WIDTH}" height="${HEIGHT}"/>
      <path class="far" d="M0 176C120 120 210 128 320 166S540 128 ${WIDTH} 158V${HEIGHT}H0Z"/>
      <path class="near" d="M0 212C160 176 300 226 430 200S580 186 ${WIDTH} 202V${HEIGHT}H0Z"/>
      ${scene.things.map(([kind, box]) => stretched(kind, box)).join("")}
      ${scene.objects.map((o) => stretched("sheep", o.box)).join("")}
      ${scene.objects.map(({ box: [x1, y1, x2, y2], difficult }) =>
        `<rect class="object${difficult ? " difficult" : ""}" x="${x1}" y="${y1}" width="${x2 - x1}" height="${y2 - y1}"/>`).join("")}`;
  }

  // Per window a frame, which has the focus, and above all frames its marks, which can be reached under another window.
  // They are made once per scene, so that the focus stays while a window moves.
  function draw(svg, scene) {
    svg.replaceChildren();
    drawGround(svg, scene);
    const layers = [Svg.add(svg, "g"), Svg.add(svg, "g", { "aria-hidden": "true" })];
    const frames = scene.windows.map(({ name }) => makeWindow(layers, name));
    return { frames, grip: Svg.add(layers[1], "rect", { class: "grip" }) };
  }

  function makeWindow([below, above], name) {
    const group = Svg.add(below, "g", { tabindex: "0", role: "slider", "data-window": name });
    const marks = Svg.add(above, "g");
    return {
      group,
      marks,
      frame: Svg.add(group, "rect", { class: "frame" }),
      tag: Svg.add(marks, "rect", { class: "tag" }),
      letter: Svg.add(marks, "text", { class: "letter" }, name),
      push: Svg.add(marks, "path", { class: "push" }),
    };
  }

  // An arrow from (x, y), up for a positive length.
  function arrow(x, y, length, width) {
    const sign = Math.sign(length), head = 1.5 * width;
    const tip = y - length, neck = tip + sign * head;
    const half = width / 2, wide = width * 1.15;
    return `M${x - half} ${y}L${x - half} ${neck}H${x - wide}L${x} ${tip}L${x + wide} ${neck}H${x + half}L${x + half} ${y}Z`;
  }

  // `share` is the slope as a part of the steepest one; `scale` is how many units of the picture one pixel of the screen is:
  // marks keep their size on a phone.
  function placeWindow(parts, { box: [x1, y1, x2, y2] }, share, scale, kind) {
    const size = 18 * scale, width = 6 * scale;
    parts.group.setAttribute("class", `window ${kind}`);
    parts.marks.setAttribute("class", `marks ${kind} ${share > 0 ? "up" : "down"}`);
    Svg.set(parts.frame, { x: x1, y: y1, width: x2 - x1, height: y2 - y1, rx: 3 * scale });
    Svg.set(parts.tag, { x: x1, y: y1, width: size, height: size, rx: 3 * scale });
    Svg.set(parts.letter, { x: x1 + size / 2, y: y1 + size * 0.74, "font-size": 12.5 * scale });
    const length = Math.sign(share) * (13 + 27 * Math.abs(share)) * scale; // long enough to have a head
    const start = (y1 + y2) / 2 + length / 2;
    // Right of the middle, where arrows of windows on the same spot are further apart.
    parts.push.setAttribute("d", share ? arrow(x1 + 0.7 * (x2 - x1), start, length, width) : "");
  }

  // The corner by which the chosen window is made larger or smaller.
  function placeGrip(grip, { box: [, , x2, y2] }, scale, kind) {
    const size = 13 * scale;
    Svg.set(grip, { class: `grip ${kind}`, x: x2 - 0.6 * size, y: y2 - 0.6 * size, width: size, height: size, rx: 3 * scale });
  }

  return { draw, placeWindow, placeGrip };
})();
