// AP after NMS as a step function of every score, and its slopes: the plain Python of src/stepgrad/reference once more, in
// JavaScript, for one image and one class. Numbers in, numbers out; nothing here knows of a page.
//
// A scene is {windows: [{box, score}], objects: [{box, difficult}]}, a box [x1, y1, x2, y2].
// Options are {protocol, nmsThreshold (null: no NMS), throughNms, radius, minStep}, as the library names them.
const Steps = (() => {
  "use strict";

  // The very floats of the library, which are those of pycocotools.
  const COCO_THRESHOLDS = Array.from({ length: 10 }, (_, i) => (i === 9 ? 0.95 : 0.5 + i * ((0.95 - 0.5) / 9)));

  // levels: recall levels, null for the whole area. floatLevels: level q as the product q * 0.01, not as the fraction.
  // freeObjects: a window takes the best object that is still free (COCO), or else its best one, free or not (VOC).
  const PROTOCOLS = {
    voc07: { levels: 11, floatLevels: false, thresholds: [0.5], freeObjects: false },
    voc12: { levels: null, floatLevels: false, thresholds: [0.5], freeObjects: false },
    coco: { levels: 101, floatLevels: true, thresholds: COCO_THRESHOLDS, freeObjects: true },
  };

  const MOST_WINDOWS = 30; // up to here an AP, counted in parts of lcm(1..N), is a whole number that a double holds
  const TRUE = "TP", FALSE = "FP", IGNORED = "ignored", SUPPRESSED = "suppressed";

  const sum = (numbers) => numbers.reduce((a, b) => a + b, 0);
  const area = ([x1, y1, x2, y2]) => (x2 - x1) * (y2 - y1);

  function iou(a, b) {
    const width = Math.max(0, Math.min(a[2], b[2]) - Math.max(a[0], b[0]));
    const height = Math.max(0, Math.min(a[3], b[3]) - Math.max(a[1], b[1]));
    const inter = width * height;
    return inter > 0 ? inter / (area(a) + area(b) - inter) : 0;
  }

  function lcmUpTo(n) {
    const gcd = (a, b) => (b ? gcd(b, a % b) : a);
    let lcm = 1;
    for (let i = 2; i <= n; i++) lcm = (lcm / gcd(lcm, i)) * i;
    return lcm;
  }

  // How many recall levels the k-th true positive serves, k = 1..P, and the number of levels in all.
  function levelsServed(P, { levels, floatLevels }) {
    if (levels === null) return { counts: Array(P).fill(1), norm: Math.max(P, 1) };
    const counts = Array(P).fill(0);
    const last = levels - 1;
    for (let q = 0; q <= last && P > 0; q++) {
      const level = q * (1 / last);
      const reaches = (k) => (floatLevels ? k / P >= level : k * last >= q * P);
      let k = 1;
      while (!reaches(k)) k++;
      counts[k - 1] += 1;
    }
    return { counts, norm: levels };
  }

  // Everything but the scores: who overlaps whom, and how AP counts.
  function describe(scene, options) {
    const { windows, objects } = scene;
    if (windows.length > MOST_WINDOWS) throw new Error(`Expected at most ${MOST_WINDOWS} windows but got ${windows.length}.`);
    const protocol = PROTOCOLS[options.protocol];
    const threshold = options.nmsThreshold === null ? Infinity : options.nmsThreshold;
    const P = objects.filter((o) => !o.difficult).length;
    return {
      protocol,
      P,
      ...levelsServed(P, protocol),
      unit: lcmUpTo(windows.length),
      ignored: objects.map((o) => Boolean(o.difficult)),
      overlaps: windows.map((w) => objects.map((o) => iou(w.box, o.box))),
      neighbours: windows.map((a, i) => windows.map((b, j) => i !== j && iou(a.box, b.box) > threshold)),
    };
  }

  // Of equal scores the lower index comes first, in NMS and in the ranking alike.
  const byScore = (scores, windows) => [...windows].sort((a, b) => scores[b] - scores[a] || a - b);

  // Greedy NMS: kept windows in decreasing score, and per window the highest kept one that overlaps it (-1 when kept).
  function nms(known, scores) {
    const keep = [];
    const suppressor = scores.map(() => -1);
    for (const b of byScore(scores, scores.keys())) {
      const above = keep.find((d) => known.neighbours[b][d]);
      if (above === undefined) keep.push(b);
      else suppressor[b] = above;
    }
    return { keep, suppressor };
  }

  // VOC: the object with the largest overlap, the first of equals, if that reaches the threshold; -1 if not.
  function bestObject(overlaps, threshold) {
    let best = -1;
    overlaps.forEach((v, o) => { if (v >= threshold && (best < 0 || v > overlaps[best])) best = o; });
    return best;
  }

  // COCO: the free object with the largest overlap, the last of equals; countable ones before difficult ones.
  function bestFreeObject(overlaps, threshold, ignored, taken) {
    const usable = [...overlaps.keys()].filter((o) => overlaps[o] >= threshold && (ignored[o] || !taken.has(o)));
    const countable = usable.filter((o) => !ignored[o]);
    const pick = (best, o) => (best < 0 || overlaps[o] >= overlaps[best] ? o : best);
    return (countable.length ? countable : usable).reduce(pick, -1);
  }

  // The verdict on each detection of a list in decreasing score.
  function judge(known, list, threshold) {
    const taken = new Set();
    return list.map((b) => {
      const o = known.protocol.freeObjects
        ? bestFreeObject(known.overlaps[b], threshold, known.ignored, taken)
        : bestObject(known.overlaps[b], threshold);
      if (o < 0) return FALSE;
      const again = taken.has(o);
      taken.add(o);
      return known.ignored[o] ? IGNORED : again ? FALSE : TRUE;
    });
  }

  // Precision k / r_k of each true positive in units of 1 / known.unit: a whole number, so equal ones are equal.
  function precisions(known, verdicts) {
    const counted = verdicts.filter((v) => v !== IGNORED);
    const ranks = [...counted.keys()].filter((i) => counted[i] === TRUE);
    return ranks.map((rank, i) => (known.unit / (rank + 1)) * (i + 1));
  }

  // p_k = max over l >= k.
  const filledIn = (values) => values.map((_, k) => Math.max(...values.slice(k)));

  // AP = sum_k counts_k p_k / norm, here the whole number unit * norm * AP.
  const apUnits = (known, verdicts) => sum(filledIn(precisions(known, verdicts)).map((p, k) => known.counts[k] * p));
  const asAP = (known, units) => units / known.unit / known.norm;

  // AP at each threshold, in units; the kept windows are computed again unless they are given.
  function unitsAt(known, scores, kept) {
    const list = kept ? byScore(scores, kept) : nms(known, scores).keep;
    return known.protocol.thresholds.map((t) => apUnits(known, judge(known, list, t)));
  }

  function curveOf(known, scores, b, kept) {
    return (y) => unitsAt(known, scores.map((s, i) => (i === b ? y : s)), kept);
  }

  // A point in every gap between the breakpoints, and one beyond either end.
  function samplePoints(breakpoints) {
    if (!breakpoints.length) return [0];
    const inner = breakpoints.slice(1).map((y, i) => breakpoints[i] + (y - breakpoints[i]) / 2);
    return [breakpoints[0] - 1, ...inner, breakpoints[breakpoints.length - 1] + 1];
  }

  // AP can only change where the moving score passes another one: one value here, one between all breakpoints.
  function trace(known, scores, b, kept) {
    const curve = curveOf(known, scores, b, kept);
    const others = new Set(scores.filter((_, i) => i !== b));
    const breakpoints = [...others].sort((p, q) => p - q);
    return { x: scores[b], here: curve(scores[b]), breakpoints, between: samplePoints(breakpoints).map(curve) };
  }

  // The same with one number per value instead of one per threshold.
  const seenBy = (traced, pick) => ({ ...traced, here: pick(traced.here), between: traced.between.map(pick) });

  // The nearest step on either side: where, and the value just beyond; +-Infinity and the value here if there is none.
  function nearestSteps({ x, here, breakpoints, between }) {
    const differs = (value) => value !== here;
    const up = breakpoints.findIndex((y, j) => y >= x && differs(between[j + 1]));
    const down = breakpoints.findLastIndex((y, j) => y <= x && differs(between[j]));
    return {
      here,
      upAt: up < 0 ? Infinity : breakpoints[up],
      up: up < 0 ? here : between[up + 1],
      downAt: down < 0 ? -Infinity : breakpoints[down],
      down: down < 0 ? here : between[down],
    };
  }

  const slope = (rise, run) => (run > 0 && run < Infinity ? rise / run : 0);

  // Symmetric difference estimator: the mean of the slopes to the nearest step on either side.
  function sde(x, near, minStep) {
    const up = slope(near.up - near.here, Math.max(near.upAt - x, minStep));
    const down = slope(near.here - near.down, Math.max(x - near.downAt, minStep));
    return up / 2 + down / 2;
  }

  // Mean envelope estimator: between two steps the mean slope of the two envelopes, else SDE.
  function mee(x, near, minStep) {
    const width = near.upAt - near.downAt;
    if (width === Infinity) return sde(x, near, minStep);
    return slope(near.up - near.down, width || minStep) / 2;
  }

  // All three slopes of AP in the score of window b; over several thresholds the mean of their slopes.
  function slopesOf(known, scores, b, kept, { radius, minStep }) {
    const traced = trace(known, scores, b, kept);
    const curve = curveOf(known, scores, b, kept);
    const near = known.protocol.thresholds.map((_, t) => nearestSteps(seenBy(traced, (units) => units[t])));
    const mean = (values) => asAP(known, sum(values) / values.length);
    const above = mean(curve(traced.x + radius)), below = mean(curve(traced.x - radius));
    return {
      sde: mean(near.map((n) => sde(traced.x, n, minStep))),
      mee: mean(near.map((n) => mee(traced.x, n, minStep))),
      radius: slope(above - below, 2 * radius),
    };
  }

  // The paper's way through NMS, at one threshold: a suppressed window borrows the steps of its suppressor, and where an
  // object is missed, its suppressed windows and their suppressors are pushed apart. No radius: that needs no nearest steps.
  function paperSlopes(known, scores, t, minStep) {
    const { keep, suppressor } = nms(known, scores);
    const list = judge(known, keep, known.protocol.thresholds[t]);
    const slopes = scores.map((x, b) => {
      const d = suppressor[b] < 0 ? b : suppressor[b];
      const near = nearestSteps(seenBy(trace(known, scores, d, keep), (units) => units[t]));
      if (b !== d && x <= near.downAt) Object.assign(near, { downAt: -Infinity, down: near.here });
      return { sde: sde(x, near, minStep), mee: mee(x, near, minStep) };
    });
    const wants = known.overlaps.map((row) => bestObject(row, known.protocol.thresholds[t]));
    const found = new Set(keep.map((b) => wants[b]));
    suppressor.forEach((d, b) => {
      if (d < 0 || wants[b] < 0 || found.has(wants[b]) || known.ignored[wants[b]]) return;
      const replaced = list.map((verdict, i) => (keep[i] === d ? TRUE : verdict));
      const gain = apUnits(known, replaced) - apUnits(known, list);
      const push = slope(gain, Math.max(scores[d] - scores[b], minStep)) / 2;
      for (const name of ["sde", "mee"]) {
        slopes[b][name] += push;
        slopes[d][name] -= push;
      }
    });
    return slopes;
  }

  function allSlopes(known, scores, options) {
    if (options.throughNms !== "paper") {
      const kept = options.throughNms === "none" ? nms(known, scores).keep : null;
      return scores.map((_, b) => slopesOf(known, scores, b, kept, options));
    }
    const perThreshold = known.protocol.thresholds.map((_, t) => paperSlopes(known, scores, t, options.minStep));
    const mean = (b, name) => asAP(known, sum(perThreshold.map((slopes) => slopes[b][name])) / perThreshold.length);
    return scores.map((_, b) => ({ sde: mean(b, "sde"), mee: mean(b, "mee"), radius: null }));
  }

  // What a page shows of a scene: AP, who is kept, the verdicts and the curve at the first threshold, the slopes of every score.
  function measure(scene, options) {
    const known = describe(scene, options);
    const scores = scene.windows.map((w) => w.score);
    const { keep, suppressor } = nms(known, scores);
    const units = unitsAt(known, scores, keep);
    const list = judge(known, keep, known.protocol.thresholds[0]);
    const precision = precisions(known, list);
    return {
      ap: asAP(known, sum(units) / units.length),
      keep,
      suppressor,
      verdicts: scores.map((_, b) => (suppressor[b] < 0 ? list[keep.indexOf(b)] : SUPPRESSED)),
      objects: known.P,
      precision: precision.map((p) => p / known.unit),
      filled: filledIn(precision).map((p) => p / known.unit),
      slopes: allSlopes(known, scores, options),
    };
  }

  // AP over the whole axis of one score, the mean over the thresholds: {breakpoints, between, here} in AP, and its steps.
  function apAlong(scene, options, b) {
    const known = describe(scene, options);
    const scores = scene.windows.map((w) => w.score);
    const kept = options.throughNms === "none" ? nms(known, scores).keep : null;
    const total = seenBy(trace(known, scores, b, kept), sum); // whole numbers still, so that equal APs are equal
    const isStep = total.breakpoints.map((_, j) => total.between[j] !== total.between[j + 1]);
    const share = known.protocol.thresholds.length;
    const along = seenBy(total, (units) => asAP(known, units / share));
    return { ...along, steps: along.breakpoints.filter((_, j) => isStep[j]) };
  }

  // The nearest steps of AP in every score; for protocols of one threshold, like the library's map_steps.
  function mapSteps(scene, options) {
    const known = describe(scene, options);
    const scores = scene.windows.map((w) => w.score);
    const kept = options.throughNms === "none" ? nms(known, scores).keep : null;
    return scores.map((_, b) => {
      const near = nearestSteps(seenBy(trace(known, scores, b, kept), (units) => units[0]));
      return { ...near, here: asAP(known, near.here), up: asAP(known, near.up), down: asAP(known, near.down) };
    });
  }

  return { PROTOCOLS, TRUE, FALSE, IGNORED, SUPPRESSED, levelsServed, measure, apAlong, mapSteps };
})();
