// A curve over time, drawn by uPlot: the line is the last value of each pixel, the band its least and greatest.
import { tools, useValue } from "./view.js";
import { useAnswer } from "./answers.js";
import { clock } from "./format.js";
import { theme } from "./theme_choice.js";
import { Picture, Table } from "./table.js";
import { Help } from "./words.js";

const { html, useLayoutEffect, useRef } = tools;
const POINTS = 300;
// Line styles tell curves apart for those who do not see the colours.
const DASHES = [[], [7, 4], [2, 3]];

/**
 * `curves`: [{name, label, show: value → text, tick?: the same for the axis}], one to three series of /api/v1/series in one picture.
 * `span`: [first, last] in unix seconds keeps the axis still during a replay; null fits the axis to the data.
 */
export function Chart({ id, title, help, curves, span = null, log = false }) {
  const answers = [0, 1, 2].map((n) =>
    // Hooks may not be called more or less often from one drawing to the next: three always.
    useAnswer("series", { name: curves[Math.min(n, curves.length - 1)].name, points: POINTS }, { skip: n >= curves.length }),
  );
  const shown = answers.slice(0, curves.length);
  const ready = shown.every((answer) => answer.data !== null);
  const some = ready && shown.some((answer) => answer.data.t.length > 0);
  const table = () => html`<${Table} caption=${title} columns=${columns(curves)} rows=${rows(curves, shown)} />`;
  const legend = html`<ul class="legend">${curves.map(
    (curve, n) => html`<li><span class=${"stroke stroke-" + n} aria-hidden="true"></span>${curve.label}
      ${some && html` <b class="num">${curve.show(lastOf(shown[n].data))}</b>`}</li>`,
  )}</ul>`;
  return html`<${Picture} id=${id} title=${title} help=${help && html`<${Help} text=${help} label=${title} />`} table=${table}>
    ${legend}
    ${some
      ? html`<${Plot} title=${title} curves=${curves} series=${shown.map((a) => a.data)} span=${span} log=${log} />`
      : html`<p class="quiet plot-space">${shown.find((a) => a.error)?.error ?? (ready ? "No value yet." : "Loading…")}</p>`}
  <//>`;
}

function Plot({ title, curves, series, span, log }) {
  const place = useRef(null);
  const plot = useRef(null);
  const shade = useValue(theme);
  const data = joined(series);
  const from = span?.[0] ?? null;
  const to = span?.[1] ?? null;

  useLayoutEffect(() => {
    const element = place.current;
    plot.current = new uPlot(options(element, curves, log, from, to), data, element);
    const watch = new ResizeObserver(() => plot.current.setSize({ width: element.clientWidth, height: element.clientHeight }));
    watch.observe(element);
    return () => {
      watch.disconnect();
      plot.current.destroy();
    };
    // Colours are read when the plot is made: another theme, another plot.
  }, [shade, curves.map((c) => c.name).join(), from, to, log]);
  useLayoutEffect(() => plot.current.setData(data), [series.map((s) => s.t.length + ":" + s.t.at(-1) + ":" + s.last.at(-1)).join()]);

  const ends = curves.map((curve, n) => curve.label + " " + curve.show(lastOf(series[n])));
  return html`<div class="plot" ref=${place} role="img" aria-label=${title + ". Now: " + ends.join(", ") + ". The Table button shows the values."}></div>`;
}

function options(element, curves, log, from, to) {
  const css = getComputedStyle(document.documentElement);
  const colour = (name) => css.getPropertyValue(name).trim();
  const axis = { stroke: colour("--muted"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif" };
  const lines = [];
  const bands = [];
  curves.forEach((curve, n) => {
    const stroke = colour("--curve-" + n);
    lines.push({ label: curve.label, stroke, width: 2, dash: DASHES[n], points: { show: false }, spanGaps: true });
    lines.push({ stroke: "transparent", points: { show: false }, spanGaps: true });
    lines.push({ stroke: "transparent", points: { show: false }, spanGaps: true });
    bands.push({ series: [3 * n + 3, 3 * n + 2], fill: stroke + "2e" });
  });
  return {
    width: element.clientWidth,
    height: element.clientHeight,
    legend: { show: false },
    cursor: { drag: { x: false, y: false }, points: { show: true } },
    plugins: [readout(curves)],
    scales: { x: { time: true, range: from === null ? undefined : () => [from, to] }, y: log ? { distr: 3 } : { range: roomy } },
    axes: [
      { ...axis, size: 30, space: 70, values: [[86400 * 365, "{YYYY}", ...Array(6).fill(null), 1], [86400, "{MMM} {D}", ...Array(6).fill(null), 1], [60, "{HH}:{mm}", "\n{MMM} {D}", null, null, null, null, null, 1], [1, "{HH}:{mm}:{ss}", ...Array(6).fill(null), 1]] },
      { ...axis, size: (_, texts) => 16 + 7 * Math.max(3, ...(texts ?? []).map((text) => text.length)), values: (_, ticks) => ticks.map((v) => (v === null ? "" : (curves[0].tick ?? curves[0].show)(v))) },
    ],
    series: [{}, ...lines],
    bands,
  };
}

/** A little air above and below; a flat curve gets a scale too. */
function roomy(_, low, high) {
  if (low === null) return [0, 1];
  const air = (high - low) * 0.08 || Math.abs(high) * 0.1 || 1;
  return [low >= 0 ? Math.max(0, low - air) : low - air, high + air];
}

/** The values below the pointer, in a box. */
function readout(curves) {
  let box = null;
  return {
    hooks: {
      init: (plot) => {
        box = document.createElement("div");
        box.className = "readout";
        box.hidden = true;
        plot.over.append(box);
        plot.over.addEventListener("mouseleave", () => (box.hidden = true));
      },
      setCursor: (plot) => {
        const { idx, left } = plot.cursor;
        if (idx === null || idx === undefined || left < 0) return;
        const parts = curves.map((curve, n) => [curve.label, plot.data[3 * n + 1][idx], curve]).filter(([, v]) => v !== null && v !== undefined);
        box.textContent = [clock(plot.data[0][idx]), ...parts.map(([label, v, curve]) => label + " " + curve.show(v))].join(" · ");
        box.hidden = false;
        box.style.left = Math.max(0, Math.min(left + 8, plot.over.clientWidth - box.offsetWidth)) + "px";
      },
    },
  };
}

/** uPlot's columns: all times, then last, least and greatest of each series, null where a series has no value then. */
function joined(series) {
  const times = [...new Set(series.flatMap((s) => s.t))].sort((a, b) => a - b);
  const place = new Map(times.map((t, n) => [t, n]));
  const columns = [times];
  for (const one of series) {
    for (const key of ["last", "min", "max"]) {
      const column = new Array(times.length).fill(null);
      one.t.forEach((t, n) => (column[place.get(t)] = one[key][n]));
      columns.push(column);
    }
  }
  return columns;
}

function lastOf(data) {
  for (let n = data.last.length - 1; n >= 0; n--) if (data.last[n] !== null) return data.last[n];
  return null;
}

const columns = (curves) => [
  { label: "time", cell: (row) => clock(row.t) },
  ...curves.map((curve, n) => ({ label: curve.label, number: true, cell: (row) => curve.show(row.values[n]) })),
];

/** At most 60 rows, newest first. */
function rows(curves, answers) {
  const [times, ...rest] = joined(answers.map((a) => a.data));
  const every = Math.max(1, Math.ceil(times.length / 60));
  return times
    .map((t, n) => ({ t, values: curves.map((_, c) => rest[3 * c][n]) }))
    .filter((_, n) => (times.length - 1 - n) % every === 0)
    .reverse();
}
