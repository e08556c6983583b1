// The passes of the run: who may join or observe, with how many devices; a new one, and taking one back.
import { tools } from "../view.js";
import { ask, post } from "../answers.js";
import { copied } from "../copied.js";
import { clock, tame } from "../format.js";
import { Table } from "../table.js";
import { Foreign } from "../words.js";

const { html, useEffect, useRef, useState } = tools;
const EVERY_MS = 10_000;
/** Unix seconds, as the passes of open runs have it. */
const NEVER = 2 ** 40;
const ROLES = { peer: "takes part", observe: "observes" };

/** For the organiser, of a home in which a run is, or was, coordinated. */
export function Passes() {
  const [rows, setRows] = useState(null);
  const [failure, setFailure] = useState("");
  const [revoked, setRevoked] = useState(null);
  const [looks, setLooks] = useState(0);
  useEffect(() => {
    let gone = false;
    const look = () =>
      ask("/api/v1/passes").then(
        (reply) => gone || (setRows(reply.passes), setFailure("")),
        (error) => gone || setFailure(error.message),
      );
    look();
    const timer = setInterval(look, EVERY_MS);
    return () => {
      gone = true;
      clearInterval(timer);
    };
  }, [looks]);
  const lookAgain = () => setLooks((n) => n + 1);
  const columns = [
    { label: "name", cell: (p) => html`<${Foreign} text=${p.name} most=${32} />` },
    { label: "its devices", cell: (p) => ROLES[p.role] ?? tame(p.role, 20) },
    { label: "joined", number: true, help: "Devices that have joined with it, of those that it is for", cell: (p) => (p.open ? String(p.joined) : `${p.joined} of ${p.devices}`) },
    { label: "who", cell: (p) => (p.peers.length ? html`<details><summary>…${tame(p.peers[0].slice(-8), 8)}${p.joined > 1 ? ` and ${p.joined - 1} more` : ""}</summary>${p.peers.map((peer) => html`<div key=${peer}><code>${tame(peer, 64)}</code></div>`)}</details>` : "nobody yet") },
    { label: "expires", cell: (p) => (p.expires_at >= NEVER ? "never" : clock(p.expires_at)) },
    { label: "state", cell: (p) => tame(p.state, 60) },
    { label: "", cell: (p) => (p.revoked ? "" : html`<button class="dangerous" onClick=${() => setRevoked(p)}>Revoke ${tame(p.name, 32)}…</button>`) },
  ];
  return html`<section class="card" aria-label="Passes"><header><h2>Passes</h2></header>
    <p>Whoever has the line of a pass can use it, with so many devices. <code>swarm-peer invite</code>, <code>invites</code> and <code>revoke</code> do the same.</p>
    ${rows === null ? html`<p class="quiet">${failure ? "" : "Asking…"}</p>` : html`<${Table} caption="Passes" columns=${columns} rows=${rows} rowKey=${(p) => p.serial} empty="No pass was made yet." />`}
    ${failure && html`<p class="failure" role="alert"><span aria-hidden="true">▲</span> ${tame(failure, 400)}</p>`}
    <${NewPass} onMade=${lookAgain} />
    ${revoked && html`<${Revoke} given=${revoked} onDone=${lookAgain} onClose=${() => setRevoked(null)} />`}
  </section>`;
}

function NewPass({ onMade }) {
  const [fields, setFields] = useState({ name: "", devices: "1", expires: "30d", role: "peer" });
  const [made, setMade] = useState(null);
  const [said, setSaid] = useState("");
  const [busy, setBusy] = useState(false);
  const shown = useRef(null);
  const set = (key) => (event) => setFields({ ...fields, [key]: event.target.value });
  const make = async (event) => {
    event.preventDefault();
    setBusy(true);
    setSaid("");
    setMade(null);
    const body = { ...fields, name: fields.name.trim(), devices: Number(fields.devices) };
    await post("passes", body).then(
      (reply) => (setMade(reply), onMade()),
      (error) => setSaid("▲ " + error.message),
    );
    setBusy(false);
  };
  const copy = () => copied(made.line, shown.current).then(setSaid);
  return html`<form class="form" onSubmit=${make} aria-label="New pass">
    <h3>New pass</h3>
    <label>Name <input type="text" required maxlength="32" pattern="[A-Za-z0-9][A-Za-z0-9._\\-]*" autocomplete="off" value=${fields.name} onInput=${set("name")} /></label>
    <label>Devices <input type="number" required min="1" max="100000" step="1" value=${fields.devices} onInput=${set("devices")} /></label>
    <label>Expires after <input type="text" required pattern="[1-9][0-9]{0,4}[hdw]" title="12h, 30d or 8w" value=${fields.expires} onInput=${set("expires")} /></label>
    <label>Its devices <select onChange=${set("role")}><option value="peer" selected=${fields.role === "peer"}>take part</option><option value="observe" selected=${fields.role === "observe"}>observe</option></select></label>
    <div class="buttons"><button class="primary" disabled=${busy}>${busy ? "Making…" : "Make a pass"}</button></div>
    ${made && html`<p>${tame(made.name, 32)} uses this line. It is secret, and shown here once.</p><pre class="line"><code ref=${shown}>${tame(made.line, 8000)}</code></pre><div class="buttons"><button type="button" onClick=${copy}>Copy the line</button></div>`}
    <p class="quiet" role="status">${tame(said, 400)}</p>
  </form>`;
}

function Revoke({ given, onDone, onClose }) {
  const dialog = useRef(null);
  const [why, setWhy] = useState("");
  const [failure, setFailure] = useState("");
  useEffect(() => dialog.current.showModal(), []);
  const revoke = (event) => {
    event.preventDefault();
    post("passes/revoke", { serial: given.serial, why: why.trim() }).then(
      () => (onDone(), onClose()),
      (error) => setFailure(error.message),
    );
  };
  return html`<dialog ref=${dialog} onClose=${onClose} onCancel=${onClose} aria-labelledby="revoke-title">
    <h2 id="revoke-title">Revoke <${Foreign} text=${given.name} most=${32} />?</h2>
    <p>Nobody gets in with it any more. The ${given.joined} devices that have are shut out within seconds.</p>
    <label>Why? <input type="text" maxlength="200" placeholder="stands in the record, and its devices are told" value=${why} onInput=${(e) => setWhy(e.target.value)} onKeyDown=${(e) => e.key === "Enter" && revoke(e)} /></label>
    ${failure && html`<p class="failure" role="alert"><span aria-hidden="true">▲</span> ${tame(failure, 400)}</p>`}
    <div class="buttons"><button type="button" class="dangerous" onClick=${revoke}>Revoke</button><button type="button" onClick=${onClose}>Cancel</button></div>
  </dialog>`;
}
