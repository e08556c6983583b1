// The pipeline: stages as columns, their replicas as cells; what each does now, who is slowest, who is to move.
import { tools, keep, kept, showIn } from "../view.js";
import { useAnswer } from "../answers.js";
import { bytes, count, duration, NONE, percent, plain, stageName, tame } from "../format.js";
import { Picture, Table } from "../table.js";
import { Foreign, Help, Meter, PeerLink, State, stateClass, Status } from "../words.js";

const { html, useEffect, useState } = tools;

export function PipelinePage() {
  const answer = useAnswer("pipeline", {}, { topic: "pipeline" });
  const run = useAnswer("run", {}, { topic: "run" }).data;
  const [mine, setMine] = useState(kept("my-machine", ""));
  const [process, setProcess] = useState(null);
  const data = answer.data;
  useEffect(() => {
    const found = mine ? document.querySelector(".cell.mine") : null;
    if (found) showIn(found.closest(".pipeline") ?? found.parentElement, found);
  }, [mine]);
  if (data === null) return html`<${Status} answer=${answer} />`;
  const cells = [...data.stages.flatMap((s) => s.cells), ...data.standby];
  const names = processNames(cells);
  const found = mine ? cells.filter((c) => isMine(c, mine)) : [];
  const find = (text) => {
    setMine(text);
    keep("my-machine", text);
  };
  const one = (cell) => html`<${Cell} key=${cell.actor} cell=${cell} mine=${mine !== "" && isMine(cell, mine)} processName=${names.get(cell.seat_of)} linked=${process !== null && cell.seat_of === process} onProcess=${setProcess} />`;

  return html`
    <div class="toolbar">
      <label>Find my machine <input type="search" placeholder="end of its peer id" value=${mine} onInput=${(e) => find(e.target.value.trim())} /></label>
      <span class="quiet" role="status">${mine === "" ? "" : found.length === 0 ? "Not among the peers shown here." : found.map((c) => `${tame(c.name, 20)}: ${c.word}, ${place(data, c)}`).join("; ")}</span>
    </div>
    <${Planned} planned=${data.planned} />
    <${Picture} id="pipeline-picture" title=${run?.open ? `Step ${run.open.step + 1}, microbatches now` : "Stages and their replicas"}
      help=${html`<${Help} label="this picture" text="A batch is cut into microbatches. They go through the stages from left to right (forward) and back (backward). Replicas of one stage share its microbatches by weight. The bar of a stage: dark, added to its gradient; light, sent on." />`}
      table=${() => html`<${AsTable} data=${data} />`}>
      <ul class="key">${[["●", "working"], ["◐", "joining"], ["▲", "slow"], ["◇", "leaving"], ["✕", "gone or fenced"], ["○", "standing by"], ["⏸", "paused"]].map(([symbol, word]) => html`<li><${State} symbol=${symbol} word=${word} /></li>`)}</ul>
      <div class="pipeline" tabindex="0" role="group" aria-label="Stages">
        ${data.stages.map((stage) => html`<${Boundary} stage=${stage} /><section class=${"stage" + (stage.slowest ? " slowest" : "")} key=${stage.stage} aria-label=${"Stage " + stage.stage}>
          <${StageHead} stage=${stage} />
          <ul class="cells">${stage.cells.map(one)}</ul>
          ${stage.total > stage.cells.length && html`<p class="quiet">and ${stage.total - stage.cells.length} more replicas: see Peers</p>`}
        </section>`)}
      </div>
      ${data.standby.length > 0 && html`<h3>Standing by</h3><ul class="cells flat">${data.standby.map(one)}</ul>`}
    <//>`;
}

function StageHead({ stage }) {
  const done = stage.microbatches ? stage.accumulated / stage.microbatches : 0;
  const sent = stage.microbatches ? stage.forwarded / stage.microbatches : 0;
  return html`<header>
    <h3>Stage ${stage.stage} ${Number.isFinite(stage.cost) && html`<span class="quiet num">${percent(stage.cost)} of the model</span>`}</h3>
    <p class="num"><b>${count(stage.rate)}</b> microbatches/s ${stage.slowest && html`<${State} symbol="▲" word="slowest stage" />`}</p>
    ${stage.why && html`<p class="quiet why"><${Foreign} text=${stage.why} /></p>`}
    ${stage.microbatches > 0 && html`<div class="double-meter" role="img" aria-label=${`${stage.accumulated} of ${stage.microbatches} microbatches added, ${stage.forwarded} sent on`}>
      <span class="sent" style=${{ width: 100 * sent + "%" }}></span><span class="done" style=${{ width: 100 * done + "%" }}></span>
    </div>
    <p class="num small">of ${stage.microbatches}: ${stage.forwarded ?? NONE} sent on, ${stage.accumulated ?? NONE} added to the gradient</p>`}
    ${stage.reduce && html`<p class="small"><span aria-hidden="true">Σ</span> <${Foreign} text=${stage.reduce} /></p>`}
  </header>`;
}

function Boundary({ stage }) {
  if (stage.stage === 0) return null;
  const codec = stage.codec_in;
  return html`<div class="boundary" title="The codec that packs what crosses the boundary">
    <span aria-hidden="true" class="arrow"></span>
    <span class="only-read">Between stages ${stage.stage - 1} and ${stage.stage}: </span>
    <span class="codec"><span aria-hidden="true">→</span><span class="only-read">forward</span> ${tame(codec?.forward ?? "", 30)}</span>
    <span class="codec"><span aria-hidden="true">←</span><span class="only-read">backward</span> ${tame(codec?.backward ?? "", 30)}</span>
  </div>`;
}

function Cell({ cell, mine, processName, linked, onProcess }) {
  const own = assigned(cell);
  return html`<li class=${`cell ${stateClass(cell.symbol, cell.word)}${mine ? " mine" : ""}${linked ? " linked" : ""}`}>
    <div class="cell-head"><${State} symbol=${cell.symbol} word=${cell.word} why=${cell.why} />
      ${mine && html`<span class="mine-word">★ mine</span>`}
      ${processName && html`<button class="seat" title="Seats of one process: one machine serves several stages" onMouseEnter=${() => onProcess(cell.seat_of)} onMouseLeave=${() => onProcess(null)} onFocus=${() => onProcess(cell.seat_of)} onBlur=${() => onProcess(null)}>process ${processName}</button>`}</div>
    <${PeerLink} ...${cell} />
    ${own > 0 && html`<div class="cell-progress"><${Meter} share=${cell.done / own} label=${`${cell.done} of its ${own} microbatches`} /><span class="num small">${cell.done}/${own}</span></div>`}
    ${cell.out ? html`<p class="small">${outWords(cell)}</p>` : html`<p class="num small quiet">${Number.isFinite(cell.seconds_per_microbatch) ? duration(cell.seconds_per_microbatch) + " a microbatch" : "speed not known"}${Number.isFinite(cell.weight) ? " · weight " + plain(cell.weight, 2) : ""}</p>`}
  </li>`;
}

function Planned({ planned }) {
  if (!planned) return null;
  return html`<p class="strip idle"><span aria-hidden="true">⇄</span> <b>Planned:</b> <${PeerLink} actor=${planned.actor} name=${planned.name} /> moves from ${stageName(planned.source)} to ${stageName(planned.stage)}${
    Number.isFinite(planned.gain) && planned.gain > 0 ? html`, a gain of <b class="num">${count(planned.gain)}</b> microbatches` : ""}. <span class="quiet"><${Foreign} text=${planned.reason} /></span></p>`;
}

function AsTable({ data }) {
  const rows = [...data.stages.flatMap((s) => s.cells.map((c) => ({ ...c, stage: s.stage }))), ...data.standby.map((c) => ({ ...c, stage: null }))];
  const columns = [
    { label: "stage", cell: (r) => r.stage ?? NONE, number: true },
    { label: "peer", cell: (r) => html`<${PeerLink} ...${r} />` },
    { label: "state", cell: (r) => html`<${State} ...${r} />` },
    { label: "open step", cell: (r) => (r.out ? outWords(r) : "") },
    { label: "done", number: true, cell: (r) => r.done ?? NONE },
    { label: "of its own", number: true, cell: (r) => assigned(r) || NONE, help: "Microbatches of the open step that are its own" },
    { label: "share", number: true, cell: (r) => percent(r.share), help: "Of its stage's microbatches, by weight" },
    { label: "a microbatch takes", number: true, cell: (r) => duration(r.seconds_per_microbatch) },
    { label: "weight", number: true, cell: (r) => plain(r.weight, 2) },
    { label: "cores", number: true, cell: (r) => plain(r.usage?.cpu, 1) },
    { label: "memory", number: true, cell: (r) => bytes(r.usage?.resident) },
  ];
  return html`<${Table} caption="Stages and their replicas" columns=${columns} rows=${rows} rowKey=${(r) => r.stage + r.actor} />`;
}

/** Why a peer that was in the open step's table has no part in it any more. */
const outWords = (cell) => (cell.symbol === "✕" || cell.word === "left" ? "others do its part of this step" : "not in this step any more");

/** Microbatches of the open step that are this peer's; 0 when that is not known. */
const assigned = (cell) => (cell.done ?? 0) + (cell.left ?? 0);

const isMine = (cell, text) => [cell.name, cell.actor, cell.peer].some((t) => String(t ?? "").toLowerCase().includes(text.toLowerCase()));

function place(data, cell) {
  const stage = data.stages.find((s) => s.cells.includes(cell));
  return stage ? stageName(stage.stage) : "standing by";
}

/** A, B, … for each process that has more than one seat. */
function processNames(cells) {
  const counts = new Map();
  for (const { seat_of: key } of cells) if (key) counts.set(key, (counts.get(key) ?? 0) + 1);
  const shared = [...counts].filter(([, n]) => n > 1).map(([key]) => key).sort();
  return new Map(shared.map((key, n) => [key, n < 26 ? String.fromCharCode(65 + n) : String(n + 1)]));
}
