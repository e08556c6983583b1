// What the organiser can do: each command with what it does, a confirmation that asks why, and its command line.
import { tools, useValue } from "../view.js";
import { embedded } from "../embedded.js";
import { ask, post, useAnswer } from "../answers.js";
import { copied } from "../copied.js";
import { tame } from "../format.js";
import { Foreign, Status } from "../words.js";
import { access, observed, TokenForm } from "../session.js";
import { Passes } from "./passes.js";

const { html, useEffect, useRef, useState } = tools;

/** In the order of how often they are needed. `value`: what the command takes, with the kind of its field. */
const COMMANDS = [
  { name: "pause", title: "Pause", says: "Ends the open step, then opens no other until you resume. Peers stay." },
  { name: "resume", title: "Resume", says: "Opens steps again." },
  { name: "checkpoint", title: "Checkpoint now", says: "All stages write their state after the next step, and the coordinator archives it." },
  { name: "dismiss", title: "Ask to leave", says: "The peer finishes what depends on it, then leaves. Nothing is done again.", value: { label: "Peer", kind: "peer" } },
  { name: "expel", title: "Expel", says: "The peer has no part in the run any more, from now on. What it had not finished is done again.", value: { label: "Peer", kind: "peer" }, danger: true },
  { name: "rate", title: "Learning rate", says: "Multiplies the schedule from the next step on: 1 is the run file's own, 0.5 half of it.", value: { label: "Multiplier", kind: "number", min: 0.000001, step: "any", initial: "1" }, changes: true },
  { name: "steps", title: "Length of the run", says: "A new number of steps. The learning rate's cosine stays as it was.", value: { label: "Steps in all", kind: "number", min: 1, step: 1 }, changes: true },
  { name: "stop_after", title: "End after a step", says: "The run is finished when that step is decided, and its last checkpoint is archived.", value: { label: "Step", kind: "number", min: 1, step: 1 }, danger: true },
];

export function ControlsPage() {
  const answer = useAnswer("run", {}, { topic: "run" });
  const may = useValue(access);
  const watching = useValue(observed);
  const invite = useInvite(may === "organiser" && embedded === null && !watching);
  const run = answer.data;
  if (run === null) return html`<${Status} answer=${answer} />`;
  if (embedded !== null) return html`<p class="quiet">A report cannot steer a run.</p>`;
  if (watching) return html`<p class="lead">You observe this run. Its organiser steers it.</p>`;
  if (may !== "organiser") {
    return html`<p class="lead">Controls are for the organiser. Everything here can also be done from the command line: <code>swarm-peer control --help</code>.</p>
      <${TokenForm} why="Are you the organiser?" />`;
  }
  // The invite stands above the commands: if it came later, it would move them from under the pointer.
  if (invite === null) return html`<p class="quiet" role="status">Loading…</p>`;
  if (!run.control) {
    return html`<${Invite} ...${invite} /><${Passes} /><p class="lead">${run.finished ? "The run is finished: there is nothing to steer." : run.live ? "This coordinator takes no commands: its control socket is missing." : "No coordinator is running on this home: there is nobody to take a command."}</p>`;
  }
  return html`<${Invite} ...${invite} /><div class="commands">${COMMANDS.map((command) => html`<${Command} key=${command.name} command=${command} run=${run} />`)}</div><${Passes} />`;
}

function Command({ command, run }) {
  const [value, setValue] = useState(command.value?.initial ?? "");
  const [said, setSaid] = useState(null);
  const [asking, setAsking] = useState(false);
  const send = async (why) => {
    setAsking(false);
    setSaid({ ok: true, text: "Sent…" });
    const body = { command: command.name, value: String(value), why };
    await post("control", body).then(
      (reply) => setSaid({ ok: true, text: `${reply.number ? "Command " + reply.number + ": " : ""}${reply.text || "done"}` }),
      (error) => setSaid({ ok: false, text: error.message }),
    );
  };
  const open = (event) => {
    event.preventDefault();
    setAsking(true);
  };
  return html`<form class=${"card command" + (command.danger ? " danger" : "")} onSubmit=${open} aria-labelledby=${"command-" + command.name}>
    <h2 id=${"command-" + command.name}>${command.title}</h2>
    <p>${command.says}</p>
    ${command.changes && html`<p class="quiet small">This changes the result, so it stands in the decision record and <code>swarm-peer reference</code> repeats it.</p>`}
    ${command.value && html`<${Field} field=${command.value} value=${value} onValue=${setValue} />`}
    <div class="buttons"><button class=${command.danger ? "dangerous" : "primary"}>${command.title}…</button></div>
    ${said && html`<p class=${said.ok ? "said" : "failure"} role="status"><span aria-hidden="true">${said.ok ? "✓" : "▲"}</span> ${tame(said.text, 300)}</p>`}
    ${asking && html`<${Confirm} command=${command} value=${value} onSend=${send} onClose=${() => setAsking(false)} />`}
  </form>`;
}

function Field({ field, value, onValue }) {
  const peers = useAnswer("peers", { limit: 200 }, { skip: field.kind !== "peer" }).data?.peers ?? [];
  if (field.kind === "number") {
    return html`<label>${field.label} <input type="number" required min=${field.min} step=${field.step} value=${value} onInput=${(e) => onValue(e.target.value)} /></label>`;
  }
  // A list to choose from, and any id can be typed: a swarm may have more peers than a list.
  const present = peers.filter((p) => !p.left_at);
  return html`<label>${field.label} <input type="text" required list="present-peers" placeholder="actor or peer id" autocomplete="off" value=${value} onInput=${(e) => onValue(e.target.value.trim())} />
    <datalist id="present-peers">${present.map((p) => html`<option value=${p.actor}>${tame(p.name, 20)}${p.stage === null ? "" : ", stage " + p.stage}</option>`)}</datalist></label>`;
}

/** Nothing is sent without a second press; the reason goes into the record, with who gave the command. */
function Confirm({ command, value, onSend, onClose }) {
  const dialog = useRef(null);
  const [why, setWhy] = useState("");
  useEffect(() => dialog.current.showModal(), []);
  const shell = (text) => (/^[\w.:@/+-]+$/.test(text) ? text : "'" + String(text).replaceAll("'", "'\\''") + "'");
  const line = ["swarm-peer control", command.name, command.value ? shell(value) : "", "--home HOME", why ? "--why " + shell(why) : ""].filter(Boolean).join(" ");
  const confirm = (event) => {
    event.preventDefault();
    event.stopPropagation(); // the dialog lies in the command's own form
    onSend(why.trim());
  };
  return html`<dialog ref=${dialog} onClose=${onClose} onCancel=${onClose} aria-labelledby="confirm-title">
    <h2 id="confirm-title">${command.title}${command.value ? html`: <${Foreign} text=${value} most=${60} />` : ""}?</h2>
    <p>${command.says}</p>
    <label>Why? <input type="text" maxlength="200" placeholder="stands in the log beside the command" value=${why} onInput=${(e) => setWhy(e.target.value)} onKeyDown=${(e) => e.key === "Enter" && confirm(e)} /></label>
    <p class="quiet small">The same from the command line:</p><pre class="line"><code>${line}</code></pre>
    <div class="buttons"><button type="button" class=${command.danger ? "dangerous" : "primary"} onClick=${confirm}>${command.title}</button><button type="button" onClick=${onClose}>Cancel</button></div>
  </dialog>`;
}

const SYSTEMS = { linux: "Linux", macos: "macOS", windows: "Windows (WSL)" };

/** The lines that volunteers need, by system, or why there are none; null until the server has answered. */
function useInvite(wanted) {
  const [invite, setInvite] = useState(null);
  useEffect(() => {
    if (!wanted) return undefined;
    let gone = false;
    const show = (found) => !gone && setInvite(found);
    ask("/api/v1/join").then((reply) => show({ lines: reply.lines, why: "" }), (error) => show({ lines: null, why: error.message }));
    return () => {
      gone = true;
    };
  }, [wanted]);
  return invite;
}

/** The line for the reader's system. */
function Invite({ lines, why }) {
  const [system, setSystem] = useState("linux");
  const line = lines?.[system];
  const [said, setSaid] = useState(why);
  const shown = useRef(null);
  const copy = () => copied(line, shown.current).then(setSaid);
  return html`<section class="card" aria-label="Invite"><header><h2>Invite</h2></header>
    <p>Volunteers run this line. <label class="inline">Their system <select onChange=${(e) => setSystem(e.target.value)}>${Object.entries(SYSTEMS).map(([key, label]) => html`<option value=${key} selected=${key === system}>${label}</option>`)}</select></label></p>
    ${line && html`<pre class="line"><code ref=${shown}>${tame(line, 8000)}</code></pre><div class="buttons"><button onClick=${copy}>Copy</button></div>`}
    <p class="quiet" role="status">${tame(said, 200)}</p></section>`;
}
