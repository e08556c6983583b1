// Links between peers: a matrix of pairs, or a graph, or a table; by rate, by round trip, by bytes.
import { tools } from "../view.js";
import { useAnswer } from "../answers.js";
import { bytes, duration, linkRate, NONE, stageName, tame } from "../format.js";
import { Pages, Picture, Table } from "../table.js";
import { Help, PeerLink, Status } from "../words.js";

const { html, useState } = tools;
const LIMIT = 40;

const total = (pair) => Object.values(pair.bytes ?? {}).reduce((a, b) => a + b, 0);
/** What a pair is coloured by: its value, its text, and whether more is better. */
const MEASURES = {
  rate: { label: "rate", of: (p) => p.rate, show: linkRate, short: (v) => linkRate(v).replace("bit/s", ""), unit: "bit/s", better: 1 },
  rtt: { label: "round trip", of: (p) => p.rtt_s, show: duration, short: duration, unit: "", better: -1 },
  bytes: { label: "bytes sent", of: total, show: bytes, short: bytes, unit: "", better: 1 },
};

export function LinksPage() {
  const [offset, setOffset] = useState(0);
  const [chosen, setName] = useState(null);
  const [graph, setGraph] = useState(false);
  const answer = useAnswer("links", { limit: LIMIT, offset: offset || null }, { topic: null, every: 3 });
  const data = answer.data;
  if (data === null) return html`<${Status} answer=${answer} />`;
  const name = chosen ?? fullest(data.pairs);
  const measure = MEASURES[name];
  const pick = html`<label class="inline">show <select onChange=${(e) => setName(e.target.value)}>${Object.entries(MEASURES).map(([key, m]) => html`<option value=${key} selected=${key === name}>${m.label}</option>`)}</select></label>
    <button aria-pressed=${graph ? "true" : "false"} onClick=${() => setGraph(!graph)}>${graph ? "Matrix" : "Graph"}</button>`;
  return html`<${Picture} id="links-picture" title="Links" tools=${pick}
    help=${html`<${Help} label="links" text="Rates and round trips are what the peers saw with large frames, as they report after each step. Passed on: the two cannot reach each other, and somebody between them hands their frames over." />`}
    table=${() => html`<${AsTable} data=${data} />`}>
    ${data.pairs.length === 0
      ? html`<p class="quiet">No peer has reported its links yet: they do with their first step.</p>`
      : html`<p class="key-note quiet">From the row to the column, in ${measure.unit || "the unit shown"}. Darker: ${measure.better > 0 ? "more" : "longer"}. ⤳ passed on by another peer. ✕ has left the swarm. A dot: not measured yet; a rate needs large frames.</p>
        ${graph ? html`<${Graph} data=${data} measure=${measure} />` : html`<${Matrix} data=${data} measure=${measure} />`}`}
    <${Pages} offset=${offset} limit=${LIMIT} total=${data.total} onOffset=${setOffset} what="peers" />
  <//>`;
}

/** The first measure that most pairs have: rates are only known where large frames cross. */
function fullest(pairs) {
  const has = (key) => pairs.filter((p) => MEASURES[key].of(p) > 0).length;
  return Object.keys(MEASURES).find((key) => 2 * has(key) >= pairs.length) ?? "bytes";
}

/** Beside the name of a peer that has left the swarm. */
const gone = (actor) => (actor.gone ? html` <span title="has left the swarm">✕</span>` : "");

function Matrix({ data, measure }) {
  const pairs = new Map(data.pairs.map((p) => [p.from + "\n" + p.to, p]));
  const tint = tints(data.pairs, measure);
  return html`<div class="table matrix" tabindex="0" role="region" aria-label="Matrix of links"><table>
    <caption class="only-read">${measure.label} from the row's peer to the column's</caption>
    <thead><tr><th scope="col"><span class="only-read">from \\ to</span></th>${data.actors.map((a) => html`<th scope="col" class="turned"><span><${PeerLink} ...${a} />${gone(a)}</span></th>`)}</tr></thead>
    <tbody>${data.actors.map(
      (a) => html`<tr key=${a.actor}><th scope="row"><span class="stage-tag">${a.stage === null || a.stage === undefined ? "–" : "S" + a.stage}</span> <${PeerLink} ...${a} />${gone(a)}</th>${data.actors.map((b) => {
        const pair = pairs.get(a.actor + "\n" + b.actor);
        if (!pair) return html`<td class=${a === b ? "self" : "none"}></td>`;
        const value = measure.of(pair);
        return html`<td class=${"tint-" + tint(value)} title=${pairWords(pair, data)}>${Number.isFinite(value) ? measure.short(value) : "·"}${pair.via ? html` <span title="passed on by another peer">⤳</span>` : ""}</td>`;
      })}</tr>`,
    )}</tbody></table></div>`;
}

/** Stages from left to right; a line for each pair, thicker with more; dashed when passed on. */
function Graph({ data, measure }) {
  const columns = [...new Set(data.actors.map((a) => a.stage ?? -1))].sort((a, b) => a - b);
  const tallest = Math.max(...columns.map((c) => data.actors.filter((a) => (a.stage ?? -1) === c).length));
  const width = Math.max(2, columns.length) * 200;
  const height = Math.max(200, tallest * 80 + 60);
  const place = new Map();
  columns.forEach((column, n) => {
    const inIt = data.actors.filter((a) => (a.stage ?? -1) === column);
    inIt.forEach((a, m) => place.set(a.actor, [100 + n * 200, 40 + ((m + 0.5) * (height - 40)) / inIt.length]));
  });
  const tint = tints(data.pairs, measure);
  return html`<div class="table" tabindex="0" role="region" aria-label="Graph of links"><svg class="graph" viewBox=${`0 0 ${width} ${height}`} style=${{ minWidth: Math.min(width, 900) * 0.7 + "px" }} role="img" aria-label=${`Graph of ${data.pairs.length} links between ${data.actors.length} peers; the Table button lists them`}>
    ${columns.map((c, n) => html`<text x=${100 + n * 200} y="20" text-anchor="middle" class="graph-stage">${c < 0 ? "standing by" : "stage " + c}</text>`)}
    ${data.pairs.map((pair) => {
      const [a, b] = [place.get(pair.from), place.get(pair.to)];
      if (!a || !b) return null;
      const same = a[0] === b[0];
      const bend = same ? 60 : (b[1] - a[1]) * 0.1 + (pair.from < pair.to ? 14 : -14);
      const middle = [(a[0] + b[0]) / 2 + (same ? (pair.from < pair.to ? bend : -bend) : 0), (a[1] + b[1]) / 2 + (same ? 0 : bend)];
      const level = tint(measure.of(pair));
      return html`<path d=${`M${a[0]} ${a[1]} Q${middle[0]} ${middle[1]} ${b[0]} ${b[1]}`} class=${"link" + (pair.via ? " via" : "")} stroke-width=${1 + level} opacity=${0.3 + level * 0.11}><title>${pairWords(pair, data)}</title></path>`;
    })}
    ${data.actors.map((a) => {
      const [x, y] = place.get(a.actor);
      return html`<g><circle cx=${x} cy=${y} r="9" class="node" /><text x=${x} y=${y + 26} text-anchor="middle" class="graph-name">${tame(a.name, 12)}</text></g>`;
    })}
  </svg></div>`;
}

function AsTable({ data }) {
  const names = nameOf(data);
  return html`<${Table} caption="Links" rows=${data.pairs} columns=${[
    { label: "from", cell: (p) => html`<${PeerLink} actor=${p.from} name=${names(p.from)} />` },
    { label: "to", cell: (p) => html`<${PeerLink} actor=${p.to} name=${names(p.to)} />` },
    { label: "rate", number: true, cell: (p) => linkRate(p.rate) },
    { label: "round trip", number: true, cell: (p) => duration(p.rtt_s) },
    { label: "way", cell: (p) => (p.via ? html`through <${PeerLink} actor=${p.via} name=${names(p.via)} />` : "direct") },
    ...["forward", "backward", "sums", "state", "padding", "control"].map((kind) => ({ label: kind, number: true, cell: (p) => (p.bytes?.[kind] ? bytes(p.bytes[kind]) : NONE) })),
  ]} />`;
}

/** Levels 0 to 5 between the least and the greatest, on a scale of magnitudes. */
function tints(pairs, measure) {
  const values = pairs.map(measure.of).filter((v) => Number.isFinite(v) && v > 0).map(Math.log);
  const low = Math.min(...values);
  const high = Math.max(...values);
  return (value) => (!(value > 0) ? 0 : high - low < 1e-9 ? 3 : Math.round(1 + (4 * (Math.log(value) - low)) / (high - low)));
}

function nameOf(data) {
  const names = new Map(data.actors.map((a) => [a.actor, a.name]));
  return (actor) => names.get(actor) ?? actor;
}

function pairWords(pair, data) {
  const names = nameOf(data);
  const kinds = Object.entries(pair.bytes ?? {}).map(([kind, n]) => kind + " " + bytes(n));
  const stage = (actor) => stageName(data.actors.find((a) => a.actor === actor)?.stage);
  return tame(`${names(pair.from)} (${stage(pair.from)}) to ${names(pair.to)} (${stage(pair.to)}): ${linkRate(pair.rate)}, round trip ${duration(pair.rtt_s)}, ${pair.via ? "through " + names(pair.via) : "direct"}; ${kinds.join(", ") || "nothing sent yet"}`, 400);
}
