// What the page says, in plain words.
const Words = (() => {
  "use strict";
  const signed = (value) => (value < 0 ? "−" : "+") + Math.abs(value).toFixed(3);
  const same = (a, b) => Math.abs(a - b) < 1e-9;

  const suppressorOf = (scene, found, b) => scene.windows[found.suppressor[b]].name;

  function verdict(scene, found, b) {
    return found.verdicts[b] === Steps.SUPPRESSED ? `under ${suppressorOf(scene, found, b)}` : found.verdicts[b];
  }

  function isWhat(scene, found, b) {
    if (found.verdicts[b] === Steps.SUPPRESSED) return `is suppressed by ${suppressorOf(scene, found, b)}`;
    return {
      [Steps.TRUE]: "finds a sheep",
      [Steps.FALSE]: "is a false alarm",
      [Steps.IGNORED]: "lies on a difficult sheep and is not counted",
    }[found.verdicts[b]];
  }

  function about(scene, found, b, slope) {
    const push = slope > 0 ? `The slope says: raise it (${signed(slope)}).`
      : slope < 0 ? `The slope says: lower it (${signed(slope)}).` : "Nothing within its reach changes AP, so it gets no push.";
    return `${scene.windows[b].name} ${isWhat(scene, found, b)}. ${push}`;
  }

  const ofSlider = (scene, found, b, rank, slope) =>
    `score ${scene.windows[b].score.toFixed(1)}, ${rank ? `rank ${rank}, ` : ""}${isWhat(scene, found, b)}, slope ${signed(slope)}`;

  function change(from, to) {
    if (same(from, to)) return `AP is still ${to.toFixed(3)}.`;
    return `AP ${to > from ? "rose" : "fell"} from ${from.toFixed(3)} to ${to.toFixed(3)}.`;
  }

  const HOW = {
    radius: ({ radius }) => `(AP at ${radius} more − AP at ${radius} less) / ${2 * radius}: it includes every jump in the band.`,
    mee: (_, { x, steps }) => (steps.some((at) => at >= x) && steps.some((at) => at <= x)
      ? "The mean slope of the two dotted lines, which join the jumps at their upper and lower ends."
      : "Beyond the outermost jump the two dotted lines end; there MEE equals SDE."),
    sde: () => "The mean of the slopes to the nearest jump on either side.",
  };
  const COCO = " With coco, it is the mean of ten slopes, one per IoU threshold.";
  const PAPER = " With paper, a suppressed window uses the jumps of the window that suppresses it, not those drawn here.";
  const how = (estimator, options, along) =>
    HOW[estimator](options, along) + (options.protocol === "coco" ? COCO : "") + (options.throughNms === "paper" ? PAPER : "");

  const AREA = {
    voc07: "AP is the mean height of the shaded curve at 11 recall levels, which the marks below show.",
    voc12: "AP is the shaded area: the thin curve with its dips filled.",
    coco: "Shown for an IoU of 0.50. AP is the mean over 101 recall levels and ten IoU thresholds, 0.50 to 0.95.",
  };
  const area = (protocol, hasBefore) => AREA[protocol] + (hasBefore ? " The dashed curve is the one before." : "");

  return { signed, same, verdict, about, ofSlider, change, how, area };
})();
