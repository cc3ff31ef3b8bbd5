// The scenes of the page. Scores lie between LOW and HIGH; the picture is WIDTH by HEIGHT.
const Scenes = (() => {
  "use strict";

  const LOW = 0, HIGH = 13, WIDTH = 640, HEIGHT = 390;
  const NAMES = [..."KLMNPQRSUVWX"]; // none of a to f, which name the paper's cases; no O or T, which read as 0 and TP

  const scene = (things, objects, windows) => ({
    things,
    objects: objects.map(([box, difficult = false]) => ({ box, difficult })),
    windows: windows.map(([score, box], i) => ({ name: NAMES[i], score, box })),
  });

  // M lies across two sheep and finds neither, but NMS keeps it and drops Q and P, which would find them. R is a second
  // window on the sheep of K. The sheep far away is marked difficult.
  function meadow() {
    return scene(
      [
        ["sun", [558, 22, 612, 76]],
        ["cloud", [70, 26, 164, 74]],
        ["cloud", [330, 40, 404, 78]],
        ["tree", [26, 92, 98, 206]],
        ["house", [428, 102, 508, 176]],
        ["bush", [196, 176, 256, 214]],
        ["rock", [196, 336, 252, 376]],
      ],
      [
        [[66, 236, 182, 322]],
        [[262, 196, 352, 264]],
        [[296, 240, 410, 322]],
        [[478, 238, 586, 318]],
        [[556, 168, 594, 196], true],
      ],
      [
        [11, [70, 230, 186, 318]],
        [9.8, [192, 172, 262, 218]],
        [8.9, [256, 190, 400, 302]],
        [5.4, [424, 98, 514, 180]],
        [6.2, [276, 202, 356, 266]],
        [7.4, [300, 244, 416, 320]],
        [8.2, [84, 250, 198, 332]],
        [4.5, [470, 236, 580, 322]],
        [3.3, [552, 164, 596, 200]],
        [2, [190, 330, 258, 382]],
      ],
    );
  }

  // The list of the paper's figure of a precision/recall curve, TFTFTTTFFFTF by decreasing score: windows far apart.
  function list() {
    return scene(
      [
        ["sun", [556, 22, 612, 78]],
        ["cloud", [112, 24, 210, 76]],
        ["tree", [20, 84, 96, 208]],
        ["house", [462, 100, 546, 180]],
        ["bush", [274, 172, 336, 212]],
        ["rock", [222, 330, 284, 378]],
      ],
      [[[116, 192, 198, 250]], [[352, 180, 430, 234]], [[212, 226, 316, 300]], [[474, 224, 584, 304]],
       [[40, 290, 164, 380]], [[340, 288, 458, 376]]],
      [
        [12, [36, 286, 160, 376]],
        [11, [270, 166, 340, 216]],
        [10, [218, 222, 318, 304]],
        [9, [458, 94, 552, 184]],
        [8, [346, 284, 466, 372]],
        [7, [112, 188, 204, 252]],
        [6, [480, 220, 582, 310]],
        [5, [14, 80, 100, 212]],
        [4, [106, 18, 214, 80]],
        [3, [218, 326, 288, 382]],
        [2, [350, 176, 434, 232]],
        [1, [552, 18, 616, 82]],
      ],
    );
  }

  // Red, green and blue of the paper's figure of NMS, here K, L and M: K drops L, so M stays and finds the sheep.
  function chain() {
    return scene(
      [["sun", [548, 26, 604, 82]], ["cloud", [90, 30, 190, 80]], ["bush", [170, 222, 262, 290]], ["rock", [470, 330, 540, 380]]],
      [[[311, 182, 471, 310]]],
      [
        [8, [150, 190, 310, 318]],
        [6.5, [224, 196, 384, 324]],
        [5.5, [298, 190, 458, 318]],
      ],
    );
  }

  // Cases of the paper's figure: the window that moves, where to, and what to say.
  const CASES = {
    a: { window: "X", to: 1.6, says: "X, a false alarm, rises but passes no other window: the order stays the same." },
    b: { window: "V", to: 4.5, says: "V, a false alarm, passes another false alarm, U." },
    c: { window: "N", to: 10.5, says: "N passes M, a hit in a dip of the curve. R, at a higher recall, fills the dip." },
    d: { window: "N", to: 12.5, says: "N moves on and passes K, a hit on the filled curve." },
    e: { window: "S", to: 6.5, says: "S passes one hit, R, and the filled curve gets lower, back to recall 1/6." },
    f: { window: "R", to: 4.5, says: "R is the hit that fills the dip of (c). Lowered past S, it no longer fills the dip." },
  };

  return { LOW, HIGH, WIDTH, HEIGHT, CASES, make: { meadow, list, chain } };
})();
