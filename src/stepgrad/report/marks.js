"use strict";
// What is on each image at the chosen scores, and which images to show. Only counting here; images.js draws.
//
// The block #evidence of the page holds, per image, `objects`: [class, x1, y1, x2, y2] and `found`, by decreasing score:
// [class, reach, score, x1, y1, x2, y2, type of mistake (-1: right), place of the object it is about (-1: none)].
// Either ends with the lines of its mask, pose or oriented box, if it is one: evaluation/outlines.py says what they are.
// A verdict depends on better detections of its class only, so cutting at a score changes none: more objects are missed.
//
// `cuts` has a level for each class, or OWN: the exact score of the class's best F1, which need not be a level. The reach of
// a detection is twice its level, plus 1 if it reaches that score.

const OWN = -1;

function reaches(reach, cut) {
  return cut === OWN ? (reach & 1) === 1 : reach >> 1 >= cut;
}

function marksOf(image, types, cuts) {
  const marks = [], found = new Set();
  for (const [label, reach, score, x1, y1, x2, y2, type, object, lines] of image.found) {
    if (!reaches(reach, cuts[label])) continue;
    if (type < 0) found.add(object);
    const truth = object < 0 ? null : truthOf(image.objects[object]);
    marks.push({ kind: type < 0 ? "right" : types[type], label, score, truth, box: [x1, y1, x2, y2], lines });
  }
  image.objects.forEach((object, place) => {
    if (!found.has(place)) marks.push({ ...truthOf(object), kind: "missed", score: null, truth: null });
  });
  return marks;
}

function truthOf([label, x1, y1, x2, y2, lines]) {
  return { label, box: [x1, y1, x2, y2], lines };
}

function layerOf(kind) {
  return kind === "right" || kind === "missed" ? kind : "wrong";
}

function tally(marks) {
  const counts = { right: 0, wrong: 0, missed: 0 };
  for (const mark of marks) counts[layerOf(mark.kind)]++;
  return counts;
}

function f1Of({ right, wrong, missed }) {
  return right + wrong + missed ? 2 * right / (2 * right + wrong + missed) : null;
}

// Counts over the whole dataset come from all detections, drawn or not; `label` is null for all classes.
function countsAt(data, cuts, label) {
  const labels = label === null ? data.objects.keys() : [label];
  const counts = { right: 0, wrong: 0, missed: 0 };
  for (const c of labels) {
    const [right, wrong] = cuts[c] === OWN ? data.own[c] : [reaching(data.hits[c], cuts[c]), reaching(data.alarms[c], cuts[c])];
    counts.right += right;
    counts.wrong += wrong;
    counts.missed += data.objects[c] - right;
  }
  return counts;
}

function reaching(pairs, level) { // of level, count, level, count, ...
  let sum = 0;
  for (let k = 0; k < pairs.length; k += 2) if (pairs[k] >= level) sum += pairs[k + 1];
  return sum;
}

// How often an object of one class was taken for another, by "object>detection"; nothing stands for none. Every object and
// every detection is counted once: an object that is not found goes to the highest box or class mistake about it.
function confusionAt(data, cuts) {
  const counts = new Map(), add = (object, detection) => counts.set(`${object}>${detection}`, (counts.get(`${object}>${detection}`) ?? 0) + 1);
  for (const image of data.images) {
    const shown = image.found.filter(([label, reach]) => reaches(reach, cuts[label]));
    const found = new Set(shown.filter((one) => one[7] < 0).map((one) => one[8])), claimed = new Set(found), taken = new Set();
    for (const [label, , , , , , , type, object] of shown) {
      const kind = type < 0 ? "right" : data.types[type], claims = (kind === "box" || kind === "class") && !claimed.has(object);
      if (claims) claimed.add(object);
      if (claims && kind === "class") taken.add(object);
      add(kind === "right" ? label : claims && kind === "class" ? image.objects[object][0] : "", label);
    }
    image.objects.forEach(([label], place) => { if (!found.has(place) && !taken.has(place)) add(label, ""); });
  }
  return counts;
}

// The images that have a mark of the class and kind asked for, with the marks to draw; those of other kinds are dim.
function chosenImages(data, { cuts, label, kind, text, order }) {
  const ofClass = (mark) => label === null || mark.label === label;
  const ofKind = (mark) => kind === "" || kind === mark.kind || kind === layerOf(mark.kind);
  const chosen = [];
  data.images.forEach((image, place) => {
    if (text && !image.id.toLowerCase().includes(text.toLowerCase())) return;
    const marks = marksOf(image, data.types, cuts).filter(ofClass);
    if ((label !== null || kind !== "") && !marks.some(ofKind)) return;
    for (const mark of marks) mark.dim = !ofKind(mark);
    const counts = tally(marks);
    chosen.push({ place, image, marks, counts, f1: f1Of(counts) });
  });
  return order === "given" ? chosen : chosen.sort(order === "worst" ? worstFirst : bestFirst);
}

function worstFirst(a, b) { // images with nothing to judge come last in both orders
  return (a.f1 === null) - (b.f1 === null) || a.f1 - b.f1 || mistakesOf(b) - mistakesOf(a) || a.place - b.place;
}

function bestFirst(a, b) {
  return (a.f1 === null) - (b.f1 === null) || b.f1 - a.f1 || b.counts.right - a.counts.right || a.place - b.place;
}

function mistakesOf({ counts }) {
  return counts.wrong + counts.missed;
}
