// The picture of the timeline: rows of peers on a canvas, zoomed and moved by mouse, touch and keyboard.
import { tools, useValue } from "./view.js";
import { duration, stageName, step } from "./format.js";
import { fill, look } from "./kinds.js";
import { theme } from "./theme_choice.js";
import { PeerLink } from "./words.js";

const { html, useEffect, useLayoutEffect, useRef, useState } = tools;

const ROW = 24; // pixels of a row,
const BAR = 18; // and of the bar in it
const TOP = 54; // where the steps, the seconds and the faults are written
const STAGE_GAP = 10;

/** `onLook` is called as soon as somebody zooms or moves: what follows the run then has to stand still. */
export function Canvas({ data, faults, onLook }) {
  const canvas = useRef(null);
  const shade = useValue(theme);
  const zero = data.steps[0].opened_at;
  const whole = wholeOf(data);
  const [view, setView] = useState(null); // [from, to] in seconds since `zero`; null: all
  const [picked, setPicked] = useState(null); // {row, step, span}
  const [from, to] = view ?? [0, whole];
  const rows = placed(data.rows);
  const height = TOP + (rows.at(-1)?.top ?? 0) + ROW + 6;
  const key = data.steps[0].step + ":" + data.steps.length;

  useEffect(() => (setView(null), setPicked(null)), [key]);
  useLayoutEffect(() => {
    const element = canvas.current;
    const redraw = () => draw(element, { data, rows, faults, from, to, zero, height, picked });
    redraw();
    const watch = new ResizeObserver(redraw);
    watch.observe(element.parentElement);
    return () => watch.disconnect();
  }, [data, faults, from, to, shade, picked, height]);

  const show = (next) => {
    onLook();
    setView(within(next, whole));
  };
  const zoom = (factor, at = (from + to) / 2) => show([at - (at - from) * factor, at + (to - at) * factor]);
  const pan = (share) => show([from + share * (to - from), to + share * (to - from)]);
  const second = (x) => from + (x / canvas.current.clientWidth) * (to - from);

  // Not passive, since a zoom must not scroll the page; only with Ctrl, so that the wheel alone still scrolls it.
  useEffect(() => {
    const element = canvas.current;
    const wheel = (event) => {
      if (!event.ctrlKey && !event.metaKey && Math.abs(event.deltaX) <= Math.abs(event.deltaY)) return;
      event.preventDefault();
      if (event.ctrlKey || event.metaKey) zoom(Math.exp(event.deltaY / 300), second(event.offsetX));
      else pan(event.deltaX / element.clientWidth);
    };
    element.addEventListener("wheel", wheel, { passive: false });
    return () => element.removeEventListener("wheel", wheel);
  });

  const drag = useRef(null);
  const down = (event) => {
    drag.current = { x: event.clientX, from, to };
    canvas.current.setPointerCapture(event.pointerId);
  };
  const move = (event) => {
    if (drag.current && event.buttons) {
      const far = ((event.clientX - drag.current.x) / canvas.current.clientWidth) * (to - from);
      if (Math.abs(event.clientX - drag.current.x) > 3) show([drag.current.from - far, drag.current.to - far]);
      return;
    }
    const hit = under(rows, data, zero, second(event.offsetX), event.offsetY);
    if (hit?.text !== picked?.text) setPicked(hit);
  };
  const press = (event) => {
    const act = {
      ArrowLeft: () => pan(-0.1), ArrowRight: () => pan(0.1), "+": () => zoom(0.7), "=": () => zoom(0.7), "-": () => zoom(1.4), 0: () => setView(null), Home: () => setView(null),
      ArrowDown: () => setPicked(stepTo(rows, data, zero, picked, 1, 0)), ArrowUp: () => setPicked(stepTo(rows, data, zero, picked, -1, 0)),
      n: () => setPicked(stepTo(rows, data, zero, picked, 0, 1)), p: () => setPicked(stepTo(rows, data, zero, picked, 0, -1)),
    }[event.key];
    if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    act();
  };

  return html`<div class="timeline">
    <div class="buttons small"><button onClick=${() => zoom(0.6)} aria-label="Zoom in">+</button><button onClick=${() => zoom(1.6)} aria-label="Zoom out">−</button>
      <button onClick=${() => pan(-0.25)} aria-label="Move to earlier">←</button><button onClick=${() => pan(0.25)} aria-label="Move to later">→</button>
      <button disabled=${view === null} onClick=${() => setView(null)}>whole</button>
      <span class="quiet wide">drag to move, Ctrl + wheel to zoom; keys: ← → + − 0, ↑ ↓ rows, n p spans</span></div>
    <div class="timeline-body" style=${{ height: height + "px" }}>
      <ul class="gutter">${rows.map(
        (row) => html`<li key=${row.actor} style=${{ top: TOP + row.top + "px" }}>${row.first && html`<span class="stage-tag">${row.stage === null || row.stage === undefined ? "–" : "S" + row.stage}</span>`}<${PeerLink} ...${row} /></li>`,
      )}</ul>
      <div class="canvas-place"><canvas ref=${canvas} tabindex="0" role="img" aria-describedby="picked"
        aria-label=${`Timeline of ${rows.length} peers in steps ${step(data.steps[0].step)} to ${step(data.steps.at(-1).step)}. The Table button shows its numbers.`}
        onPointerDown=${down} onPointerMove=${move} onPointerUp=${() => (drag.current = null)} onPointerLeave=${() => !drag.current && setPicked(null)} onKeyDown=${press}></canvas></div>
    </div>
    <p class="picked num" id="picked" aria-live="polite">${picked?.text ?? "Point at a bar to see what it is."}</p>
  </div>`;
}

/** Seconds from the first opening to the last decision. */
function wholeOf(data) {
  const zero = data.steps[0].opened_at;
  return Math.max(...data.steps.map((s) => (s.decided_at ?? s.opened_at + (s.seconds ?? 0)) - zero), 0.001) * 1.01;
}

/** A view that stays within the whole, and is at least a millisecond's worth of it. */
function within([from, to], whole) {
  const length = Math.min(whole, Math.max(whole / 2000, to - from));
  const start = Math.max(0, Math.min(whole - length, from));
  return length >= whole ? null : [start, start + length];
}

/** Rows with their place, by stage; the first of a stage knows that it is. */
function placed(rows) {
  const sorted = [...rows].sort((a, b) => (a.stage ?? 1e9) - (b.stage ?? 1e9));
  let top = 0;
  return sorted.map((row, n) => {
    const first = n === 0 || sorted[n - 1].stage !== row.stage;
    if (n > 0) top += ROW + (first ? STAGE_GAP : 0);
    return { ...row, top, first };
  });
}

/** [kind, microbatch, start, length] of one peer and step in seconds since `zero`; `sums`: made from sums alone. */
function spansOf(one, opened, zero) {
  const start = opened - zero + (one.offset_s ?? 0);
  if (one.spans.length > 0) return { sums: false, spans: one.spans.map(([kind, mb, at, length]) => [kind, mb, start + at, length]) };
  let at = start;
  const spans = Object.entries(one.sums).map(([kind, length]) => [kind, -1, (at += length) - length, length]);
  return { sums: true, spans };
}

function draw(canvas, { data, rows, faults, from, to, zero, height, picked }) {
  const width = canvas.parentElement.clientWidth;
  const ratio = devicePixelRatio || 1;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.width = width + "px";
    canvas.style.height = height + "px";
  }
  const css = getComputedStyle(document.documentElement);
  const colour = (name) => css.getPropertyValue(name).trim();
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  pen.font = "12px system-ui, sans-serif";
  pen.textBaseline = "middle";
  const x = (second) => ((second - from) / (to - from)) * width;
  const opened = new Map(data.steps.map((s) => [s.step, s.opened_at]));
  const top = new Map(rows.map((row) => [row.actor, TOP + row.top + (ROW - BAR) / 2]));

  // The steps: where each opens and is decided. What is not covered later is waiting.
  data.steps.forEach((one, n) => {
    const left = x(one.opened_at - zero);
    const right = x((one.decided_at ?? one.opened_at + one.seconds) - zero);
    pen.fillStyle = colour(n % 2 ? "--band-odd" : "--band-even");
    pen.fillRect(left, TOP - 4, right - left, height - TOP);
    pen.fillStyle = colour("--line-strong");
    pen.fillRect(left, 0, 1, height);
    const next = data.steps[n + 1];
    if (next !== undefined && x(next.opened_at - zero) - right > 100) {
      pen.fillStyle = colour("--muted");
      pen.fillText("no step open", right + 8, height / 2); // an evaluation, a checkpoint, a pause
    }
    pen.fillStyle = colour("--text");
    if (right - left > 40) pen.fillText("step " + step(one.step) + (right - left > 110 ? " · " + duration(one.seconds) : ""), Math.max(left, 0) + 5, 9);
  });
  drawScale(pen, { x, from, to, width, colour });
  for (const fault of faults) {
    const left = x(fault.at - zero);
    const right = x((fault.recovered_at ?? fault.at) - zero);
    pen.fillStyle = colour("--fault-shade");
    pen.fillRect(left, TOP - 4, Math.max(0, right - left), height - TOP);
  }

  const fills = new Map();
  const filling = (kind) => fills.get(kind) ?? fills.set(kind, fill(pen, kind)).get(kind);
  for (const row of rows) {
    const y = top.get(row.actor);
    for (const one of row.steps) {
      if (!opened.has(one.step)) continue;
      const { sums, spans } = spansOf(one, opened.get(one.step), zero);
      for (const [kind, microbatch, start, length] of spans) {
        if (kind === "waiting" || start > to || start + length < from) continue;
        const left = x(start);
        const wide = Math.max(0.6, x(start + length) - left);
        const gap = wide > 4 ? 0.6 : 0;
        const tall = sums ? BAR / 2 : BAR;
        pen.fillStyle = filling(kind);
        pen.fillRect(left, y + (BAR - tall), wide - gap, tall);
        if (wide > 15 && !sums) {
          pen.fillStyle = look(kind).ink;
          const word = look(kind).letter + (microbatch >= 0 && wide > 30 ? " " + microbatch : "");
          pen.fillText(word, left + Math.min(5, wide / 2 - 4), y + BAR / 2 + 0.5);
        }
      }
    }
  }

  pen.fillStyle = colour("--text");
  for (const one of data.steps) {
    for (const { actor, start, length } of one.critical ?? []) {
      if (!top.has(actor)) continue;
      const left = x(one.opened_at - zero + start);
      pen.fillRect(left, top.get(actor) + BAR, Math.max(1, x(one.opened_at - zero + start + length) - left), 2.5);
    }
  }
  for (const fault of faults) {
    const left = x(fault.at - zero);
    pen.fillStyle = colour("--lost");
    pen.fillRect(left - 1, TOP - 18, 2, height - TOP + 18);
    pen.font = "bold 13px system-ui, sans-serif";
    const wide = pen.measureText("✕ " + fault.word).width;
    pen.fillText("✕ " + fault.word, left + 4 + wide > width ? left - 4 - wide : left + 4, TOP - 11);
  }
  if (picked?.box) {
    const { actor, start, length } = picked.box;
    pen.strokeStyle = colour("--text");
    pen.lineWidth = 2;
    pen.strokeRect(x(start), top.get(actor) - 1, Math.max(2, x(start + length) - x(start)), BAR + 2);
  }
}

/** Seconds along the top, at round numbers. */
function drawScale(pen, { x, from, to, width, colour }) {
  const least = ((to - from) / width) * 70;
  const power = 10 ** Math.floor(Math.log10(least));
  const every = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= least);
  pen.fillStyle = colour("--muted");
  for (let second = Math.ceil(from / every) * every; second < to; second += every) {
    pen.fillRect(x(second), TOP - 24, 1, 4);
    const label = duration(Number(second.toPrecision(6)));
    if (x(second) + 3 + pen.measureText(label).width < width) pen.fillText(label, x(second) + 3, TOP - 30);
  }
}

/** What is under the pointer. */
function under(rows, data, zero, second, y) {
  const row = rows.find((r) => y >= TOP + r.top && y < TOP + r.top + ROW);
  if (!row) return null;
  for (const one of row.steps) {
    const opened = data.steps.find((s) => s.step === one.step)?.opened_at;
    if (opened === undefined) continue;
    const { spans } = spansOf(one, opened, zero);
    const index = spans.findIndex(([, , start, length]) => second >= start && second <= start + length);
    if (index >= 0) return described(row, one, spans, index, opened - zero);
  }
  return null;
}

/** The next row, or the next span of the row, of what is picked; the first of all when nothing is. */
function stepTo(rows, data, zero, picked, down, along) {
  const n = picked ? Math.max(0, Math.min(rows.length - 1, rows.findIndex((r) => r.actor === picked.box.actor) + down)) : 0;
  const row = rows[n];
  const all = row.steps.flatMap((one) => {
    const opened = data.steps.find((s) => s.step === one.step)?.opened_at;
    if (opened === undefined) return [];
    const { spans } = spansOf(one, opened, zero);
    return spans.map((_, index) => described(row, one, spans, index, opened - zero));
  });
  if (all.length === 0) return picked;
  const from = picked ? picked.box.start : -Infinity;
  if (along > 0) return all.find((s) => s.box.start > from) ?? picked;
  if (along < 0) return all.filter((s) => s.box.start < from).at(-1) ?? picked;
  return all.find((s) => s.box.start >= from) ?? all[0];
}

function described(row, one, spans, index, opened) {
  const [kind, microbatch, start, length] = spans[index];
  const which = microbatch >= 0 ? ` of microbatch ${microbatch}` : "";
  const text = `${row.name} (${stageName(row.stage)}), step ${step(one.step)}: ${kind}${which}, ${duration(length)}, ${duration(start - opened)} after the step opened`;
  return { text, box: { actor: row.actor, start, length } };
}
