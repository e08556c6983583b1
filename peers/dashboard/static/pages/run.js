// The first page: what the run does, how far it is, how fast against what these peers could do, and what went wrong.
import { tools, useValue } from "../view.js";
import { href, moment } from "../address.js";
import { embedded } from "../embedded.js";
import { useAnswer } from "../answers.js";
import { Chart } from "../chart.js";
import { bytes, count, duration, NONE, percent, plain, step } from "../format.js";
import { Foreign, Help, Meter, PeerLink, Since, Status, Tile, When } from "../words.js";
import { LogLines } from "../log_lines.js";
import { SampleCards } from "../sample_cards.js";
import { STATES } from "../run_state.js";
import { faultPlace } from "../fault_place.js";

const { html, useState } = tools;

export function RunPage() {
  const answer = useAnswer("run", {}, { topic: "run" });
  const pipeline = useAnswer("pipeline", {}, { topic: "pipeline" });
  const faults = useAnswer("faults", {}, { topic: "faults" });
  const samples = useAnswer("samples", {}, { topic: "samples" });
  const at = useValue(moment);
  const whole = useAnswer("marks", {}, { timeless: true, skip: at === null });
  const run = answer.data;
  if (run === null) return html`<${Status} answer=${answer} />`;
  // While a moment of the past is looked at, the curves' axis stays: they grow into it as it plays.
  const span = at === null || !whole.data?.last ? null : [whole.data.first, whole.data.last];
  return html`
    <${Headline} run=${run} />
    <${Glance} run=${run} pipeline=${pipeline.data} faults=${faults.data} />
    <${Numbers} run=${run} />
    <div class="grid two">
      <${Chart} id="chart-loss" title="Loss" span=${span} help="Nats per token, lower is better. Training loss is that of each step's own batch; held-out loss is measured on text that is never trained on."
        curves=${[{ name: "loss", label: "training", show: (v) => plain(v, 3), tick: (v) => String(Number(v.toPrecision(3))) }, { name: "heldout_loss", label: "held-out", show: (v) => plain(v, 3) }]} />
      <${Chart} id="chart-speed" title="Speed" span=${span} help="Tokens trained per second in each step. For comparison: the speed of the same peers if none ever waited, failed or had to send anything."
        curves=${[{ name: "tokens_per_second", label: "tokens/s", show: count }, { name: "ideal_tokens_per_second", label: "ideal of these peers", show: count }]} />
    </div>
    <${MoreCurves} span=${span} />
    <section class="card" aria-labelledby="run-samples">
      <header><h2 id="run-samples">What the model writes</h2><${Help} text="The same prompt after each evaluation, by the model of that step." />
        <div class="buttons"><a class="button" href=${href("results")}>All samples</a></div></header>
      ${samples.data?.samples.length ? html`<${SampleCards} samples=${newest(samples.data.samples, 3)} />` : html`<${Status} answer=${samples} empty="No sample yet: the first comes with the first evaluation." />`}
    </section>
    <${LogLines} title="What happened lately" limit=${12} />
  `;
}

const newest = (samples, most) => samples.slice().sort((a, b) => b.version - a.version).slice(0, most);

function Headline({ run }) {
  const at = useValue(moment);
  const look = STATES[run.state.word] ?? { symbol: "○", kind: "idle" };
  const done = run.step === null || run.step < 0 ? 0 : run.step + 1;
  return html`<section class="headline" aria-label="State of the run">
    <p class=${"big-state " + look.kind}><span class="symbol" aria-hidden="true">${look.symbol}</span> <b>${run.state.word}</b>
      ${run.state.reason && html` <span class="reason"><${Foreign} text=${run.state.reason} /></span>`}
      ${!run.finished && Number.isFinite(run.state.since) && html` <span class="quiet"><${Since} at=${run.state.since} /></span>`}</p>
    ${!run.live && !run.finished && at === null && embedded === null && html`<p class="quiet">Nothing is running in this home now: that is the last its log says.</p>`}
    <div class="progress">
      <${Meter} share=${run.finished ? 1 : run.steps ? done / run.steps : 0} kind="thick" label=${`Step ${done} of ${run.steps}`} />
      <p class="num"><b>step ${done.toLocaleString("en-GB")}</b>${run.steps ? " of " + run.steps.toLocaleString("en-GB") : ""} · ${count(run.tokens)} tokens
        ${run.finished ? " · finished" : Number.isFinite(run.eta_s) && (run.live || at !== null) ? html` · <b>${duration(run.eta_s)}</b> left at the speed of the last steps` : ""}</p>
    </div>
  </section>`;
}

/** The three questions that everybody has, answered in a sentence each. */
function Glance({ run, pipeline, faults }) {
  const slow = pipeline && slowestStage(pipeline.stages);
  const slowest = slow && slowestCell(slow.cells);
  const fault = faults?.faults[0];
  return html`<section class="glance" aria-label="At a glance">
    <div class="card"><h2>Who is slow?</h2>
      ${slow
        ? html`<p><a href=${href("pipeline")}>Stage ${slow.stage}</a> limits the swarm${Number.isFinite(slow.rate) ? html`: <span class="num">${count(slow.rate)} microbatches/s</span>` : ""}.
            ${slowest && Number.isFinite(slowest.seconds_per_microbatch) ? html` Its slowest peer, <${PeerLink} ...${slowest} />, takes <b class="num">${duration(slowest.seconds_per_microbatch)}</b> a microbatch.` : ""}</p>
          ${slow.why && html`<p class="quiet"><${Foreign} text=${slow.why} /></p>`}`
        : html`<p class="quiet">${pipeline === null ? "Loading…" : "Not known yet: no step has been decided at this moment."}</p>`}
    </div>
    <div class="card"><h2>What did faults cost?</h2>
      ${run.faults > 0 && fault && !faults.faults.some((f) => f.costed)
        ? html`<p><b class="big">Not known yet.</b> <a href=${href("faults")}>${run.faults} ${run.faults === 1 ? "fault" : "faults"}</a>. ${lastFault(fault)}</p>`
        : run.faults > 0
        ? html`<p><b class="num big">${duration(run.lost.seconds)}</b> and <b class="num">${count(run.lost.tokens)}</b> tokens, in <a href=${href("faults")}>${run.faults} ${run.faults === 1 ? "fault" : "faults"}</a>.</p>
          ${fault && html`<p class="quiet">${lastFault(fault)}</p>`}`
        : html`<p><b class="big">Nothing</b> so far: no fault${run.finished ? " in this run" : ""}.</p>`}
    </div>
    <div class="card"><h2>When did it recover?</h2>
      ${fault
        ? Number.isFinite(fault.recovered_at)
          ? html`<p>${fault.recovered_at > fault.at ? html`<b class="num big">${duration(fault.recovered_at - fault.at)}</b> after the last fault` : html`<b class="big">In the same step</b>`}: step ${step(fault.step)} was decided <${When} at=${fault.recovered_at} />.</p>
            <p><a href=${faultPlace(fault)}>See it in the timeline</a></p>`
          : html`<p><b class="big">Not yet.</b> The fault was <${When} at=${fault.at} />; step ${step(fault.step)} is not decided.</p>`
        : html`<p class="quiet">There was nothing to recover from.</p>`}
    </div>
  </section>`;
}

/** As the planner says; until it has looked, the one with the least rate. */
function slowestStage(stages) {
  const rated = stages.filter((s) => Number.isFinite(s.rate)).sort((a, b) => a.rate - b.rate);
  return stages.find((s) => s.slowest) ?? rated[0];
}

/** Of those that are there; of all, when the run is over and nobody is. */
function slowestCell(cells) {
  const there = cells.filter((c) => !"✕◇".includes(c.symbol) && c.word !== "left");
  return (there.length > 0 ? there : cells).slice().sort((a, b) => (b.seconds_per_microbatch ?? 0) - (a.seconds_per_microbatch ?? 0))[0];
}

function lastFault(fault) {
  const again = fault.microbatches ? `${fault.microbatches} microbatches done again` : "";
  const cost = fault.costed ? html` It cost <b class="num">${duration(fault.seconds)}</b>${again && ", " + again}.` : Number.isFinite(fault.recovered_at) ? again && ` ${again}; the log does not tell its cost.` : " Its cost is known when the step is decided.";
  return html`The last: <${PeerLink} ...${fault} /> ${fault.word}, <${Foreign} text=${fault.reason} most=${90} />.${cost}`;
}

function Numbers({ run }) {
  const [over, setOver] = useState("3600");
  const moved = run.bytes ?? {};
  return html`<dl class="tiles" aria-label="Numbers of the run">
    <${Tile} label="Speed" value=${count(run.tokens_per_second)} unit="tokens/s" note=${`of ${count(run.ideal_tokens_per_second)} ideal`}
      help="Tokens trained per second in the last step. For comparison, the ideal: the peers of the slowest stage at full speed, without waiting.">
      <${Meter} share=${run.tokens_per_second / run.ideal_tokens_per_second} label="share of the ideal" /><//>
    <${Tile} label="Efficiency" value=${percent(run.efficiency)} note="of the peers' time computes" help="Share of the replicas' time in the last step that went into microbatches. From StepMeasured in the coordinator's log." />
    <${Tile} label="Goodput" value=${percent(run.goodput?.[over])} unit="of the ideal"
      help="Tokens that count, divided by the tokens that the peers present at each time could have trained without pauses, faults and waiting.">
      <label class="inline"><span class="only-read">Goodput over </span><select onChange=${(e) => setOver(e.target.value)}>
        ${[["60", "last minute"], ["3600", "last hour"], ["all", "whole run"]].map(([k, l]) => html`<option value=${k} selected=${k === over}>${l}</option>`)}</select></label><//>
    <${Tile} label="Training loss" value=${plain(run.loss, 3)} note=${"gradient norm " + (Number.isFinite(run.gradient_norm) ? run.gradient_norm.toPrecision(3) : NONE)} help="Nats per token in the last decided step; the norm is that of the mean gradient before clipping." />
    <${Tile} label="Held-out loss" value=${plain(run.heldout?.loss, 3)} note=${run.heldout ? "of version " + run.heldout.version : "not evaluated yet"} help="Nats per token on text that is never trained on. Version n is the model after n steps." />
    <${Tile} label="Sent" value=${bytes(moved.sent)} note=${Number.isFinite(moved.saved) && moved.saved > 0 ? `× ${moved.saved.toFixed(1)} less than fp32` : ""}
      help="Bytes that peers sent each other, by their own reports. Beside it: what the same frames would have been as 32-bit numbers." />
    <${Tile} label="Peers" value=${count(run.peers)} note=${`${(run.replicas ?? []).join(" · ")} by stage${run.standby ? `, ${run.standby} standing by` : ""}`} help="Peers that serve a stage now. By stage: the number of replicas, which share the microbatches of that stage." />
    <${Tile} label="Checkpoint" value=${run.archived === null || run.archived === undefined ? NONE : run.archived} note=${run.archived ? "version, whole in the archive" : "none yet"} help="The newest version of which the coordinator's archive holds all stages. If every peer died, the run would go on from there." />
  </dl>`;
}

const MORE = {
  goodput: ["Goodput", "Share of the ideal that was trained, over a sliding window.", percent],
  step_seconds: ["Step time", "Seconds from a step's opening to its decision.", duration],
  efficiency: ["Efficiency", "Share of the replicas' time that went into microbatches.", percent],
  gradient_norm: ["Gradient norm", "Of the mean gradient over tokens, before clipping.", (v) => (Number.isFinite(v) ? v.toPrecision(3) : NONE)],
  peers: ["Peers", "Peers that serve a stage.", count, (v) => (Number.isInteger(v) ? count(v) : "")],
  bytes_per_s: ["Traffic", "Bytes a second that all peers together sent.", (v) => (Number.isFinite(v) ? bytes(v) + "/s" : NONE)],
};

function MoreCurves({ span }) {
  const [names, setNames] = useState(["step_seconds", "peers"]);
  const choose = (n) => (event) => setNames(names.map((name, m) => (m === n ? event.target.value : name)));
  return html`<div class="grid two">${names.map((name, n) => {
    const [title, help, show, tick] = MORE[name];
    return html`<div class="choosable" key=${n}>
      <label class="chooser"><span class="only-read">Curve</span><select onChange=${choose(n)}>${Object.entries(MORE).map(([key, [label]]) => html`<option value=${key} selected=${key === name}>${label}</option>`)}</select></label>
      <${Chart} key=${name} id=${"chart-more-" + n} title=${title} help=${help} span=${span} curves=${[{ name, label: title.toLowerCase(), show, tick }]} />
    </div>`;
  })}</div>`;
}
