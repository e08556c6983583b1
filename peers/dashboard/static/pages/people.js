// What each person's machines gave: work, hours and bytes, and how the work is counted.
import { tools } from "../view.js";
import { useAnswer } from "../answers.js";
import { bytes, count, duration, percent, tame } from "../format.js";
import { Pages, Table } from "../table.js";
import { Meter, PeerLink, State, Status } from "../words.js";

const { html, useState } = tools;
const LIMIT = 100;

export function PeoplePage() {
  const [offset, setOffset] = useState(0);
  const answer = useAnswer("people", { limit: LIMIT, offset: offset || null }, { every: 5 });
  const data = answer.data;
  if (data === null) return html`<${Status} answer=${answer} />`;
  const columns = [
    { label: "#", number: true, cell: (p) => p.rank },
    { label: "who", cell: (p) => html`<${PeerLink} ...${p} />` },
    { label: "now", cell: (p) => (p.present ? html`<${State} symbol="●" word="here" />` : html`<${State} symbol="○" word="gone" />`) },
    { label: "share of the work", number: true, cell: (p) => html`<b>${percent(p.share)}</b> <${Meter} share=${p.share} label="share of the work" />` },
    { label: "tokens × layers", number: true, help: data.formula, cell: (p) => count(p.tokens_layers) },
    { label: "time here", number: true, help: "From joining to leaving, all visits together", cell: (p) => duration(3600 * p.hours) },
    { label: "sent", number: true, cell: (p) => bytes(p.bytes_sent) },
    { label: "received", number: true, cell: (p) => bytes(p.bytes_received) },
    { label: "devices", cell: (p) => tame((p.devices ?? []).join(", "), 80) },
  ];
  const rows = data.people.map((p, n) => ({ ...p, rank: offset + n + 1 }));
  return html`<section class="card" aria-label="People">
      <${Table} caption="What each gave, most first" columns=${columns} rows=${rows} rowKey=${(p) => p.peer} empty="Nobody has added a microbatch yet." />
      <${Pages} offset=${offset} limit=${LIMIT} total=${data.total} onOffset=${setOffset} what="people" />
    </section>
    <section class="card"><h2>How this is counted</h2><p>${tame(data.formula, 500)}</p>
      <p class="quiet">Anybody who has the log can count again: <code>swarm-peer status --contributions --home HOME</code>. A person is known by the key of their machine; two keys are two rows.</p></section>`;
}
