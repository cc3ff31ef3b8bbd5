"use strict";
// What is on each image at a chosen score, and which images to show. Only counting here; images.js draws.
//
// The block #evidence of the page holds, per image, `objects`: [class, x1, y1, x2, y2] and `found`, by decreasing score:
// [class, level, score, x1, y1, x2, y2, type of mistake (-1: right), place of the object it is about (-1: none)].
// A verdict depends on better detections only, so cutting at a score changes none: it just makes more objects missed.

function marksOf(image, types, chosenLevel) {
  const marks = [], found = new Set();
  for (const [label, level, score, x1, y1, x2, y2, type, object] of image.found) {
    if (level < chosenLevel) break;
    if (type < 0) found.add(object);
    const about = object < 0 ? null : image.objects[object][0];
    marks.push({ kind: type < 0 ? "right" : types[type], label, score, about, box: [x1, y1, x2, y2] });
  }
  image.objects.forEach(([label, ...box], place) => {
    if (!found.has(place)) marks.push({ kind: "missed", label, score: null, about: null, box });
  });
  return marks;
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
function countsAt(data, level, label) {
  const labels = label === null ? data.objects.keys() : [label];
  const counts = { right: 0, wrong: 0, missed: 0 };
  for (const c of labels) {
    const right = reaching(data.hits[c], level);
    counts.right += right;
    counts.wrong += reaching(data.alarms[c], level);
    counts.missed += data.objects[c] - right;
  }
  return counts;
}

function reaching(pairs, level) { // of level, count, level, count, ...
  let sum = 0;
  for (let k = 0; k < pairs.length; k += 2) if (pairs[k] >= level) sum += pairs[k + 1];
  return sum;
}

// The images that have a mark of the class and kind asked for, with the marks to draw; those of other kinds are dim.
function chosenImages(data, { level, label, kind, text, order }) {
  const ofClass = (mark) => label === null || mark.label === label;
  const ofKind = (mark) => kind === "" || kind === mark.kind || kind === layerOf(mark.kind);
  const chosen = [];
  data.images.forEach((image, place) => {
    if (text && !image.id.toLowerCase().includes(text.toLowerCase())) return;
    const marks = marksOf(image, data.types, level).filter(ofClass);
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
