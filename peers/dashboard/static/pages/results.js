// What the run makes: checkpoints to download, exports, and the samples of its text over time, side by side.
import { tools, useValue } from "../view.js";
import { embedded } from "../embedded.js";
import { post, useAnswer } from "../answers.js";
import { bytes, NONE, tame } from "../format.js";
import { SampleCards } from "../sample_cards.js";
import { Table } from "../table.js";
import { Help, State, Status, When } from "../words.js";
import { access } from "../session.js";

const { html, useState } = tools;

export function ResultsPage() {
  const may = useValue(access) === "organiser" && embedded === null;
  const checkpoints = useAnswer("checkpoints", {}, { topic: "checkpoints" });
  const samples = useAnswer("samples", {}, { every: 30 }); // the stream has only the newest ones
  return html`<${Checkpoints} answer=${checkpoints} may=${may} /><${Samples} answer=${samples} />`;
}

function Checkpoints({ answer, may }) {
  const [said, setSaid] = useState(null);
  const data = answer.data;
  const make = async (version) => {
    setSaid({ ok: true, text: `The export of version ${version} begins…` });
    await post("exports", { version }).then(
      (reply) => setSaid({ ok: true, text: tame(reply?.text ?? `Version ${version} is being exported; it appears below.`, 200) }),
      (error) => setSaid({ ok: false, text: error.message }),
    );
  };
  const columns = [
    { label: "version", number: true, cell: (c) => html`<b>${c.version}</b>` },
    { label: "written", cell: (c) => html`<${When} at=${c.at} />` },
    { label: "state", cell: (c) => (c.complete ? html`<${State} symbol="●" word="whole" />` : html`<${State} symbol="◐" word="stages missing" />`) },
    { label: "size", number: true, cell: (c) => bytes(c.nbytes) },
    { label: "digests by stage", cell: (c) => html`<code class="digests">${(c.digests ?? []).map((d) => tame(String(d ?? "").slice(0, 8) || NONE, 8)).join(" ")}</code>` },
    { label: "download", cell: (c) => (may ? html`<${Files} checkpoint=${c} make=${make} />` : html`<span class="quiet">organiser only</span>`) },
  ];
  return html`<section class="card" aria-labelledby="checkpoints">
    <header><h2 id="checkpoints">Checkpoints</h2><${Help} label="checkpoints" text="Version n is the model after n steps, kept by the coordinator as safetensors, a file a stage. Equal digests mean equal bytes: swarm-peer reference computes the same." /></header>
    ${data === null ? html`<${Status} answer=${answer} />` : html`<${Table} caption="Checkpoints, newest first" columns=${columns} rows=${data.checkpoints.slice().sort((a, b) => b.version - a.version)} rowKey=${(c) => c.version} empty="No checkpoint yet." />`}
    ${said && html`<p class=${said.ok ? "quiet" : "failure"} role="status">${said.text}</p>`}
    ${data?.exports.length > 0 && html`<h3>Exports</h3><${Table} caption="Exports" rows=${data.exports} columns=${[
      { label: "version", number: true, cell: (e) => e.version },
      { label: "state", cell: (e) => tame(e.state, 60) },
      { label: "file", cell: (e) => (may && e.file && e.state === "done" ? html`<a class="button" href=${"/downloads/exports/" + encodeURIComponent(e.file)} download>⤓ ${tame(e.file, 60)}</a>` : tame(e.file ?? NONE, 60)) },
    ]} />`}
  </section>`;
}

/** What can be had of a checkpoint: the log names all that ever were, and the archive keeps only some. */
function Files({ checkpoint: { version, digests, complete, here }, make }) {
  if (!here) return html`<span class="quiet">${complete ? "no longer in the archive" : NONE}</span>`;
  return html`<span class="buttons small">${(digests ?? []).map((_, n) => html`<a class="button" href=${`/downloads/checkpoints/${version}/${n}`} download>stage ${n}</a>`)}
    ${complete && html`<button onClick=${() => make(version)}>Export for Hugging Face</button>`}</span>`;
}

function Samples({ answer }) {
  const [prompt, setPrompt] = useState(null);
  const [pair, setPair] = useState([null, null]);
  const samples = answer.data?.samples ?? [];
  if (samples.length === 0) return html`<section class="card"><h2>Samples</h2><${Status} answer=${answer} empty="No sample yet: the first comes with the first evaluation." /></section>`;
  const prompts = [...new Set(samples.map((s) => s.prompt))];
  const shown = samples.filter((s) => s.prompt === (prompt ?? prompts[0])).sort((a, b) => a.version - b.version);
  const chosen = [pair[0] ?? shown[0].version, pair[1] ?? shown.at(-1).version];
  const pick = (n) => html`<label>${n ? "with" : "Compare"} <select onChange=${(e) => setPair(chosen.map((v, m) => (m === n ? Number(e.target.value) : v)))}>${shown.map((s) => html`<option value=${s.version} selected=${s.version === chosen[n]}>after ${s.version} steps</option>`)}</select></label>`;
  return html`<section class="card" aria-labelledby="samples">
    <header><h2 id="samples">What the model writes, over time</h2><${Help} label="samples" text="After each evaluation the model goes on from the same prompt (bold), so that the texts can be compared." /></header>
    <div class="toolbar">${prompts.length > 1 && html`<label>Prompt <select onChange=${(e) => setPrompt(e.target.value)}>${prompts.map((p) => html`<option value=${p}>${tame(p, 60)}</option>`)}</select></label>`}
      ${shown.length > 1 && html`${pick(0)} ${pick(1)}`}</div>
    ${shown.length > 1 && html`<div class="compare"><${SampleCards} samples=${chosen.map((v) => shown.find((s) => s.version === v)).filter(Boolean)} /></div><h3>All, newest first</h3>`}
    <${SampleCards} samples=${shown.slice().reverse()} />
  </section>`;
}
