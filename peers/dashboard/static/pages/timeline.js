// The timeline: what each peer did in a few steps, from the coordinator's opening of each; blank is waiting.
import { tools, useValue } from "../view.js";
import { address, change, href, moment } from "../address.js";
import { embedded } from "../embedded.js";
import { useAnswer } from "../answers.js";
import { count, duration, percent, stageName, step } from "../format.js";
import { KINDS, look } from "../kinds.js";
import { KindKey } from "../kind_key.js";
import { Canvas } from "../timeline_canvas.js";
import { Pages, Picture, Table } from "../table.js";
import { Foreign, Help, Meter, PeerLink, Status, When } from "../words.js";

const { html, useState } = tools;
const ROWS = 100;

export function TimelinePage() {
  const { params } = useValue(address);
  const at = useValue(moment);
  const [offset, setOffset] = useState(0);
  const run = useAnswer("run", {}, { topic: "run" }).data;
  const chosen = params.first !== undefined && params.last !== undefined;
  const many = Math.max(1, Math.min(16, chosen ? Number(params.last) - Number(params.first) + 1 : Number(params.steps) || 4));
  const newest = run?.step ?? null;
  // Following: the newest steps, whichever these are; their numbers stand in the question, since many may be asked for.
  const range = chosen ? { first: params.first, last: params.last } : newest === null || newest < 0 ? {} : { first: Math.max(0, newest - many + 1), last: newest };
  const answer = useAnswer("timeline", { ...range, limit: ROWS, offset: offset || null }, { every: 3 });
  const faults = useAnswer("faults", { limit: 200 }, { every: 5 }).data;
  const data = answer.data;
  if (data === null) return html`<${Status} answer=${answer} />`;
  if (data.steps.length === 0) return html`<p class="quiet">No step has been decided at this moment: the timeline begins with the first.</p>`;

  const first = data.steps[0].step;
  const last = data.steps.at(-1).step;
  const show = (from, to) => change({ first: Math.max(0, from), last: Math.max(0, to), fault: null });
  const shownFaults = faultsWithin(data, faults);
  const marked = shownFaults.find((f) => String(f.id) === params.fault) ?? null;
  return html`
    <div class="toolbar">
      ${embedded !== null ? html`<span class="num">steps <b>${step(first)}–${step(last)}</b>, which this report holds</span>` : html`<div class="buttons" role="group" aria-label="Which steps">
        <button disabled=${first <= 0} onClick=${() => show(Math.max(0, first - many), Math.max(0, first - many) + many - 1)}>◂ earlier</button>
        <span class="num">steps <b>${step(first)}–${step(last)}</b>${newest !== null ? ` of ${step(newest)}` : ""}</span>
        <button disabled=${newest === null || last >= newest} onClick=${() => show(Math.min(newest, last + many) - many + 1, Math.min(newest, last + many))}>later ▸</button>
        <button aria-pressed=${chosen ? "false" : "true"} onClick=${() => change({ first: null, last: null, fault: null, steps: many })}>newest</button>
      </div>
      <label>Steps shown <select onChange=${(e) => (chosen ? show(last - Number(e.target.value) + 1, last) : change({ steps: e.target.value }))}>
        ${[1, 2, 3, 4, 8, 16].map((n) => html`<option value=${n} selected=${n === many}>${n}</option>`)}</select></label>
      <a class="button" href=${`/api/v1/trace?first=${first}&last=${last}`} download title="Chrome trace format: open it at ui.perfetto.dev, which reads it in your browser">⤓ Trace for Perfetto</a>`}
    </div>
    ${marked && html`<${FaultStrip} fault=${marked} />`}
    <${Picture} id="timeline-picture" title="What each peer did"
      help=${html`<${Help} label="the timeline" text="Each row is a peer. Time runs from the coordinator's opening of a step; a peer's own clock is not used. Blank: it waited for input. The dark line below a row is the critical path: what the step's end waited for." />`}
      table=${() => html`<${AsTable} data=${data} />`}>
      ${data.rows.length === 0 && html`<p class="failure">No peer has told what it did in these steps: they were trained by an older release, or before the peers' reports.</p>`}
      <${KindKey} />
      <p class="key-note quiet">▁ critical path · ✕ fault, shaded until its step was decided · half-height bars: sums only, the peer sent no spans</p>
      <${Canvas} data=${data} faults=${shownFaults} onLook=${() => !chosen && at === null && show(first, last)} />
    <//>
    <${Pages} offset=${offset} limit=${ROWS} total=${data.total} onOffset=${setOffset} what="peers" />
    <div class="grid two"><${Totals} data=${data} /><${Critical} data=${data} /></div>`;
}

function FaultStrip({ fault }) {
  return html`<p class="strip lost"><span aria-hidden="true">✕</span> <b><${PeerLink} ...${fault} /></b> of ${stageName(fault.stage)} ${fault.word} <${When} at=${fault.at} />: <${Foreign} text=${fault.reason} most=${120} />.
    ${fault.costed ? html` Cost <b>${duration(fault.seconds)}</b>, ${count(fault.tokens)} tokens, ${fault.microbatches} microbatches done again.` : ""}
    ${Number.isFinite(fault.recovered_at) ? html` Recovered after <b>${duration(fault.recovered_at - fault.at)}</b>.` : " Not recovered yet."}${" "}
    <a href=${href("faults")}>All faults</a></p>`;
}

/** Seconds of each kind over all that is shown, and their shares. */
function Totals({ data }) {
  const totals = Object.fromEntries(KINDS.map((kind) => [kind, 0]));
  for (const row of data.rows) for (const one of row.steps) for (const kind of KINDS) totals[kind] += one.sums[kind] ?? 0;
  const all = Object.values(totals).reduce((a, b) => a + b, 0) || 1;
  return html`<section class="card"><header><h2>Time by kind of work</h2><${Help} text="Of all peers in the steps shown, as they measured it." /></header>
    <${Table} caption="Time by kind of work" rows=${KINDS.map((kind) => [kind, totals[kind]])} columns=${[
      { label: "kind", cell: ([kind]) => html`<span class=${"swatch kind-" + kind} aria-hidden="true">${look(kind).letter}</span> ${kind}` },
      { label: "peer-seconds", number: true, cell: ([, s]) => duration(s) },
      { label: "share", number: true, cell: ([, s]) => html`${percent(s / all)} <${Meter} share=${s / all} label="share" />` },
    ]} /></section>`;
}

/** Who held the steps up: the peers on the critical path, most first. */
function Critical({ data }) {
  const names = new Map(data.rows.map((row) => [row.actor, row.name]));
  const held = new Map();
  let all = 0;
  for (const one of data.steps) {
    for (const { actor, kind, length } of one.critical ?? []) {
      const entry = held.get(actor) ?? { actor, name: names.get(actor) ?? actor, seconds: 0, kinds: {} };
      entry.seconds += length;
      entry.kinds[kind] = (entry.kinds[kind] ?? 0) + length;
      held.set(actor, entry);
      all += length;
    }
  }
  const rows = [...held.values()].sort((a, b) => b.seconds - a.seconds).slice(0, 8);
  return html`<section class="card"><header><h2>Who the steps waited for</h2><${Help} text="Seconds that each peer is on the critical path of the steps shown: had it been faster then, the step would have ended sooner." /></header>
    <${Table} caption="Seconds on the critical path" rows=${rows} empty="No critical path is known for these steps." columns=${[
      { label: "peer", cell: (r) => html`<${PeerLink} ...${r} />` },
      { label: "on the path", number: true, cell: (r) => duration(r.seconds) },
      { label: "share", number: true, cell: (r) => html`${percent(r.seconds / all)} <${Meter} share=${r.seconds / all} label="share" />` },
      { label: "mostly", cell: (r) => Object.entries(r.kinds).sort((a, b) => b[1] - a[1])[0][0] },
    ]} /></section>`;
}

function AsTable({ data }) {
  const rows = data.rows.flatMap((row) => row.steps.map((one) => ({ ...row, ...one })));
  return html`<${Table} caption="Seconds of each kind by peer and step" rows=${rows.slice(0, 400)} columns=${[
    { label: "step", number: true, cell: (r) => step(r.step) },
    { label: "stage", number: true, cell: (r) => r.stage },
    { label: "peer", cell: (r) => html`<${PeerLink} ...${r} />` },
    ...KINDS.map((kind) => ({ label: kind, number: true, cell: (r) => duration(r.sums[kind] ?? 0) })),
  ]} />`;
}

function faultsWithin(data, faults) {
  const ids = new Set(data.steps.flatMap((s) => s.faults ?? []).map(String));
  return (faults?.faults ?? []).filter((f) => ids.has(String(f.id)));
}
