// Everything that went wrong: when, who, why, what had to be done again, and what it cost.
import { tools } from "../view.js";
import { useAnswer } from "../answers.js";
import { count, duration, NONE, step, stageName } from "../format.js";
import { Pages, Table } from "../table.js";
import { Foreign, Meter, PeerLink, Status, Tile, When } from "../words.js";
import { faultPlace } from "../fault_place.js";

const { html, useState } = tools;
const LIMIT = 50;

export function FaultsPage() {
  const [offset, setOffset] = useState(0);
  const answer = useAnswer("faults", offset ? { offset, limit: LIMIT } : { limit: LIMIT }, { topic: offset ? null : "faults" });
  const data = answer.data;
  if (data === null) return html`<${Status} answer=${answer} />`;
  const dearest = Math.max(...data.faults.map((f) => f.seconds || 0), 0.001);
  const columns = [
    { label: "when", cell: (f) => html`<${When} at=${f.at} />` },
    { label: "peer", cell: (f) => html`<${PeerLink} ...${f} />` },
    { label: "what", cell: (f) => html`<b>${f.word}</b> <span class="quiet">${stageName(f.stage)}</span>` },
    { label: "reason", cell: (f) => html`<${Foreign} text=${f.reason} />` },
    { label: "in step", number: true, cell: (f) => html`<a href=${faultPlace(f)} title="See it in the timeline">${step(f.step)} <span aria-hidden="true">↗</span></a>` },
    { label: "done again", number: true, help: "Microbatches that had to be computed again, over all stages", cell: (f) => count(f.microbatches) },
    { label: "cost", number: true, help: "Seconds that the step took beyond the usual: the median of the undisturbed steps before", cell: (f) => (f.costed ? html`<b>${duration(f.seconds)}</b> <${Meter} share=${f.seconds / dearest} kind="cost" label="compared with the dearest fault" />` : html`<span class="quiet">${Number.isFinite(f.recovered_at) ? "not told" : "step not decided yet"}</span>`) },
    { label: "tokens", number: true, help: "That would have been trained in those seconds", cell: (f) => (f.costed ? count(f.tokens) : NONE) },
    { label: "recovered", number: true, help: "From the fault to the decision of its step", cell: (f) => (Number.isFinite(f.recovered_at) ? (f.recovered_at > f.at ? html`after ${duration(f.recovered_at - f.at)}` : "in the same step") : html`<span class="quiet">not yet</span>`) },
  ];
  return html`
    <dl class="tiles">
      <${Tile} label="Faults" value=${count(data.total)} help="Peers that were lost, fenced, expelled or too slow, and steps aborted, as the coordinator decided." />
      <${Tile} label="Time lost" value=${duration(data.lost.seconds)} help="The sum of the costs: seconds that disturbed steps took beyond the usual." />
      <${Tile} label="Tokens lost" value=${count(data.lost.tokens)} help="The tokens that would have been trained in that time." />
    </dl>
    <section class="card" aria-label="Faults">
      <${Table} caption="Faults, newest first" columns=${columns} rows=${data.faults} rowKey=${(f) => f.id} empty="No fault so far. Nothing had to be done again." />
      <${Pages} offset=${offset} limit=${LIMIT} total=${data.total} onOffset=${setOffset} what="faults" />
    </section>
    <p class="quiet">When several faults fall into one step, its cost is divided among them.</p>`;
}
