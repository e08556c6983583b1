// All peers, in pages: searched, sorted by the server.
import { tools } from "../view.js";
import { useAnswer } from "../answers.js";
import { bytes, count, duration, NONE, percent, plain, tame } from "../format.js";
import { Pages, Table } from "../table.js";
import { PeerLink, State, Status, When } from "../words.js";

const { html, useEffect, useState } = tools;
const LIMIT = 50;

export function PeersPage() {
  const [typed, setTyped] = useState("");
  const [q, setQ] = useState("");
  const [offset, setOffset] = useState(0);
  const [sort, setSort] = useState(null);
  useEffect(() => {
    const timer = setTimeout(() => (setQ(typed.trim()), setOffset(0)), 250);
    return () => clearTimeout(timer);
  }, [typed]);
  const whole = offset === 0 && sort === null && q === "";
  const answer = useAnswer("peers", { limit: LIMIT, offset: offset || null, q, sort }, { topic: whole ? "peers" : null, every: 3 });
  const data = answer.data;
  const columns = [
    { label: "peer", sort: "name", cell: (p) => html`<${PeerLink} ...${p} />` },
    { label: "state", sort: "word", cell: (p) => html`<${State} ...${p} />` },
    { label: "stage", sort: "stage", number: true, cell: (p) => p.stage ?? NONE },
    { label: "share", sort: "share", number: true, help: "Its share of its stage's microbatches, by weight. The shares of one stage's replicas add up to 100 %", cell: (p) => percent(p.share) },
    { label: "tokens", sort: "tokens", number: true, help: "Of the microbatches that it added to decided steps", cell: (p) => count(p.tokens) },
    { label: "here for", sort: "hours", number: true, cell: (p) => duration(3600 * p.hours) },
    { label: "sent", sort: "bytes_sent", number: true, cell: (p) => bytes(p.bytes_sent) },
    { label: "faults", sort: "faults", number: true, cell: (p) => count(p.faults) },
    { label: "machine", cell: (p) => html`<span class="foreign">${machineWords(p.machine)}</span>` },
    { label: "cores", number: true, help: "In use, as the peer reports", cell: (p) => plain(p.usage?.cpu, 1) },
    { label: "memory", number: true, help: "Resident, as the peer reports", cell: (p) => bytes(p.usage?.resident) },
    { label: "last heard", sort: "last_at", number: true, cell: (p) => html`<${When} at=${p.left_at ?? p.last_at} />` },
  ];
  return html`
    <div class="toolbar"><label>Search <input type="search" placeholder="a part of its id" value=${typed} onInput=${(e) => setTyped(e.target.value)} /></label>
      <span class="quiet num" role="status">${data ? `${count(data.total)} peers${q ? " found" : ", those that have left included"}` : ""}</span></div>
    <section class="card" aria-label="Peers">
      ${data === null
        ? html`<${Status} answer=${answer} />`
        : html`<${Table} caption="Peers" columns=${columns} rows=${data.peers.slice(0, LIMIT)} rowKey=${(p) => p.actor} sort=${sort} onSort=${(s) => (setSort(s), setOffset(0))} empty="No peer yet." />
            <${Pages} offset=${offset} limit=${LIMIT} total=${data.total} onOffset=${setOffset} what="peers" />`}
    </section>`;
}

/** "AMD Ryzen 5, 6 cores, 16 GB, Linux". */
export function machineWords(machine) {
  if (!machine) return NONE;
  const parts = [machine.device && machine.device !== "cpu" ? machine.device : null, machine.processor, machine.cores ? machine.cores + " cores" : null, machine.memory ? bytes(machine.memory) : null, machine.system];
  return tame(parts.filter(Boolean).join(", "), 120) || NONE;
}
