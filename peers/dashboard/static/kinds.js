// The kinds of work on a timeline: a colour that colour-blind people can tell (Okabe–Ito), a pattern and a word each.

export const KINDS = ["forward", "backward", "reducing", "applying", "recovering", "waiting"];

const LOOKS = {
  forward: { colour: "#56b4e9", ink: "#000", letter: "F", pattern: "plain", says: "computing a microbatch forward" },
  backward: { colour: "#0072b2", ink: "#fff", letter: "B", pattern: "plain", says: "computing a microbatch backward" },
  reducing: { colour: "#e69f00", ink: "#000", letter: "R", pattern: "rising", says: "adding up gradients with the other replicas of its stage" },
  applying: { colour: "#009e73", ink: "#fff", letter: "A", pattern: "dots", says: "changing the weights" },
  recovering: { colour: "#d55e00", ink: "#000", letter: "!", pattern: "crossed", says: "work done again after a fault" },
  waiting: { colour: "#ffffff", ink: "#000", letter: "", pattern: "plain", says: "waiting for input: it could have worked" },
};

export const look = (kind) => LOOKS[kind] ?? LOOKS.waiting;

/** A fill for a canvas: the colour with its pattern, in device pixels. */
export function fill(context, kind) {
  const { colour, pattern } = look(kind);
  if (pattern === "plain") return colour;
  const tile = document.createElement("canvas");
  tile.width = tile.height = 8;
  const pen = tile.getContext("2d");
  pen.fillStyle = colour;
  pen.fillRect(0, 0, 8, 8);
  pen.strokeStyle = pen.fillStyle = "rgba(0,0,0,.38)";
  pen.lineWidth = 1.4;
  pen.beginPath();
  if (pattern === "dots") {
    pen.arc(4, 4, 1.3, 0, 7);
    pen.fill();
  } else {
    for (const x of [-8, 0, 8]) pen.moveTo(x, 8), pen.lineTo(x + 8, 0);
    if (pattern === "crossed") for (const x of [-8, 0, 8]) pen.moveTo(x, 0), pen.lineTo(x + 8, 8);
    pen.stroke();
  }
  return context.createPattern(tile, "repeat");
}

/** Marks of the time bar: symbol, class and word of each kind. */
export const MARKS = {
  fault: { symbol: "✕", word: "fault" },
  evaluation: { symbol: "◆", word: "evaluation" },
  checkpoint: { symbol: "■", word: "checkpoint" },
  control: { symbol: "▶", word: "control" },
  restart: { symbol: "↻", word: "restart" },
};
