// Draws the two charts, each again on every change: AP along one score, and the precision/recall curve.
const Charts = (() => {
  "use strict";
  const { LOW, HIGH } = Scenes;
  const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
  const MARGIN = { left: 34, right: 12, top: 12, bottom: 34 };

  // Clears a chart, draws its axes, and gives back the scales from values to pixels.
  function frame(svg, [low, high], [least, most], ticks, label) {
    const width = Math.max(260, svg.clientWidth), height = svg.clientHeight || 230;
    svg.replaceChildren();
    Svg.set(svg, { viewBox: `0 0 ${width} ${height}` });
    const right = width - MARGIN.right, bottom = height - MARGIN.bottom;
    const x = (value) => MARGIN.left + ((value - low) / (high - low)) * (right - MARGIN.left);
    const y = (value) => bottom - ((value - least) / (most - least)) * (bottom - MARGIN.top);
    const back = (pixel) => low + ((pixel - MARGIN.left) / (right - MARGIN.left)) * (high - low);
    for (const value of [least, (least + most) / 2, most]) {
      Svg.add(svg, "line", { class: "grid", x1: MARGIN.left, x2: right, y1: y(value), y2: y(value) });
      Svg.add(svg, "text", { class: "tick", x: MARGIN.left - 7, y: y(value) + 4, "text-anchor": "end" }, Number(value.toFixed(2)));
    }
    for (const [value, text] of ticks) {
      Svg.add(svg, "text", { class: "tick", x: x(value), y: bottom + 17, "text-anchor": "middle" }, text);
    }
    Svg.add(svg, "text", { class: "axis", x: right, y: height - 3, "text-anchor": "end" }, label);
    return { x, y, back, right, bottom };
  }

  // The pieces of a step function between LOW and HIGH: [left, right, value].
  function pieces({ breakpoints, between }) {
    const edges = [LOW, ...breakpoints.map((at) => clamp(at, LOW, HIGH)), HIGH];
    return between.map((value, j) => [edges[j], edges[j + 1], value]);
  }

  // Tenths of AP that hold all its values along one score, and not too few of them. The same wherever that score stands.
  function heights({ here, between }) {
    const values = [here, ...between];
    const least = clamp(Math.floor(10 * Math.min(...values) - 0.8) / 10, 0, 0.8);
    const most = clamp(Math.ceil(10 * Math.max(...values) + 0.8) / 10, least + 0.2, 1);
    return [least, most];
  }

  // A straight line through (x, value) with a slope in AP per unit of score, as long on the screen for every slope.
  function slopeLine(scale, x, value, slope) {
    const unit = { x: scale.x(1) - scale.x(0), y: scale.y(1) - scale.y(0) };
    const direction = [unit.x, slope * unit.y];
    const length = 78 / Math.hypot(...direction);
    const at = (t) => [scale.x(x) + t * direction[0], scale.y(value) + t * direction[1]];
    return Svg.line([at(-length), at(length)]);
  }

  // The upper or the lower envelope: straight lines between the steps, through the larger or the smaller value at each.
  function envelope(scale, { steps, breakpoints, between }, pick) {
    const corners = steps.map((at) => {
      const j = breakpoints.indexOf(at);
      return [scale.x(at), scale.y(pick(between[j], between[j + 1]))];
    });
    return Svg.line(corners);
  }

  // AP as the score of one window moves: its steps, the point where it stands, and the slopes.
  function drawSteps(svg, { along, window, others, slopes, estimator, radius }) {
    const scale = frame(svg, [LOW, HIGH], heights(along), [], `score of ${window.name}`);
    if (estimator === "radius") {
      const left = scale.x(Math.max(LOW, along.x - radius)), right = scale.x(Math.min(HIGH, along.x + radius));
      Svg.add(svg, "rect", { class: "reach", x: left, y: MARGIN.top, width: right - left, height: scale.bottom - MARGIN.top });
    }
    if (estimator === "mee") {
      for (const pick of [Math.max, Math.min]) Svg.add(svg, "path", { class: "envelope", d: envelope(scale, along, pick) });
    }
    Svg.add(svg, "line", { class: "base", x1: scale.x(LOW), x2: scale.right, y1: scale.bottom, y2: scale.bottom });
    markOthers(svg, scale, along, others);
    for (const [left, right, value] of pieces(along)) {
      Svg.add(svg, "path", { class: "level", d: Svg.line([[scale.x(left), scale.y(value)], [scale.x(right), scale.y(value)]]) });
    }
    for (const name of ["sde", "mee", "radius"]) {
      if (slopes[name] === null) continue;
      const chosen = name === estimator ? " chosen" : "";
      Svg.add(svg, "path", { class: `slope ${name}${chosen}`, d: slopeLine(scale, along.x, along.here, slopes[name]) });
    }
    Svg.add(svg, "circle", { class: "here", cx: scale.x(along.x), cy: scale.y(along.here), r: 7 });
    return scale;
  }

  // A letter on the axis for every other score; where AP jumps it stands out, and a dotted line joins the two levels.
  function markOthers(svg, scale, along, others) {
    for (const [at, names] of others) {
      const j = along.breakpoints.indexOf(at);
      const isStep = along.steps.includes(at);
      const x = scale.x(at);
      Svg.add(svg, "path", { class: isStep ? "mark step" : "mark", d: `M${x} ${scale.bottom}v${isStep ? 7 : 4}` });
      Svg.add(svg, "text", { class: isStep ? "who step" : "who", x, y: scale.bottom + 19, "text-anchor": "middle" }, names);
      if (isStep) {
        const ends = [along.between[j], along.between[j + 1]].map((value) => [x, scale.y(value)]);
        Svg.add(svg, "path", { class: "jump", d: Svg.line(ends) });
      }
    }
  }

  // Recall and precision after every detection that counts.
  function walk(verdicts, objects) {
    const points = [[0, 1]];
    let hits = 0;
    verdicts.filter((v) => v !== Steps.IGNORED).forEach((verdict, i) => {
      if (verdict === Steps.TRUE) hits += 1;
      points.push([hits / objects, hits / (i + 1)]);
    });
    return points;
  }

  // The outline of the filled-in curve, which has a level per object found.
  const outline = (filled, objects) => filled.flatMap((p, k) => [[k / objects, p], [(k + 1) / objects, p]]);

  function drawCurve(svg, { found, before, levels, selected }) {
    const fractions = found.objects > 8 ? [] : [...Array(found.objects + 1).keys()];
    const name = (k) => (k === 0 ? "0" : k === found.objects ? "1" : `${k}/${found.objects}`);
    const scale = frame(svg, [0, 1], [0, 1], fractions.map((k) => [k / found.objects, name(k)]), "recall");
    const place = ([recall, precision]) => [scale.x(recall), scale.y(precision)];
    const top = outline(found.filled, found.objects).map(place);
    if (top.length) Svg.add(svg, "path", { class: "filled", d: `${Svg.line(top)}V${scale.bottom}H${top[0][0]}Z` });
    const judged = found.keep.map((b) => found.verdicts[b]);
    Svg.add(svg, "path", { class: "walk", d: Svg.line(walk(judged, found.objects).map(place)) });
    if (top.length) Svg.add(svg, "path", { class: "top", d: Svg.line(top) });
    if (before) Svg.add(svg, "path", { class: "before", d: Svg.line(outline(before.filled, before.objects).map(place)) });
    if (levels && levels <= 11) {
      for (let q = 0; q < levels; q++) {
        const x = scale.x(q / (levels - 1));
        Svg.add(svg, "path", { class: "recall", d: `M${x} ${scale.bottom}v-6` });
      }
    }
    const hits = found.keep.filter((b) => found.verdicts[b] === Steps.TRUE);
    found.precision.forEach((p, k) => {
      const [cx, cy] = place([(k + 1) / found.objects, p]);
      Svg.add(svg, "circle", { class: hits[k] === selected ? "hit chosen" : "hit", cx, cy, r: hits[k] === selected ? 6 : 4.5 });
    });
  }

  return { drawSteps, drawCurve };
})();
