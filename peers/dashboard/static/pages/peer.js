// One peer: its machine, what it did with its time, its faults and log lines, and what would happen if it left now.
import { tools } from "../view.js";
import { href } from "../address.js";
import { useAnswer } from "../answers.js";
import { bytes, count, duration, linkRate, NONE, percent, plain, stageName, step, tame } from "../format.js";
import { KINDS, look } from "../kinds.js";
import { KindKey } from "../kind_key.js";
import { LogLines } from "../log_lines.js";
import { Picture, Table } from "../table.js";
import { Foreign, Help, PeerLink, State, Status, Tile, When } from "../words.js";
import { faultPlace } from "../fault_place.js";

const { html } = tools;

export function PeerPage({ id }) {
  const answer = useAnswer("peers/" + encodeURIComponent(id), {}, { every: 2 });
  const peer = answer.data;
  if (peer === null) return html`<${Status} answer=${answer} /><p><a href=${href("peers")}>All peers</a></p>`;
  return html`
    <p class="lead"><${State} ...${peer} /> ${stageName(peer.stage)} · joined <${When} at=${peer.joined_at} />${peer.left_at ? html` · left <${When} at=${peer.left_at} />` : ""}
      <span class="quiet"> · actor <${Foreign} text=${peer.actor} /></span></p>
    <dl class="tiles">
      <${Tile} label="Share of its stage" value=${percent(peer.share)} help="Its share of its stage's microbatches, by weight. The shares of one stage's replicas add up to 100 %." />
      <${Tile} label="Tokens" value=${count(peer.tokens)} help="The tokens of the microbatches that it added to decided steps." />
      <${Tile} label="Time here" value=${duration(3600 * peer.hours)} />
      <${Tile} label="Sent" value=${bytes(peer.bytes_sent)} />
      <${Tile} label="Faults" value=${count(peer.faults_count ?? (Array.isArray(peer.faults) ? peer.faults.length : peer.faults))} />
      <${Tile} label="Uses now" value=${plain(peer.usage?.cpu, 1)} unit="cores" note=${[bytes(peer.usage?.resident), heat(peer.usage), power(peer.usage)].filter((t) => t && t !== NONE).join(", ")} help="As the peer reports with its last step." />
    </dl>
    <${WhatIf} peer=${peer} />
    <${TimeSpent} steps=${peer.steps ?? []} />
    <div class="grid two">
      <section class="card"><header><h2>Machine</h2><${Help} text="As the peer itself says; nobody checks it." /></header>
        <${Table} caption="Machine" columns=${[{ label: "what", cell: ([k]) => tame(k.replaceAll("_", " "), 40) }, { label: "value", cell: ([k, v]) => machineValue(k, v) }]} rows=${Object.entries(peer.machine ?? {})} empty="It has not told." /></section>
      <section class="card"><header><h2>History</h2></header>
        <ol class="log" tabindex="0" aria-label="History">${(peer.history ?? []).slice().reverse().map((line) => html`<li><${When} at=${line.at} /> <${Foreign} text=${line.text} most=${300} /></li>`)}</ol></section>
    </div>
    <section class="card"><header><h2>Its links</h2></header>
      <${Table} caption="Links" rows=${peer.links ?? []} empty="No report of links yet." columns=${[
        { label: "way", cell: (l) => (l.to === peer.actor ? "← from" : "→ to") },
        { label: "peer", cell: (l) => html`<${PeerLink} ...${other(l, peer)} />` },
        { label: "rate", number: true, cell: (l) => linkRate(l.rate) },
        { label: "round trip", number: true, cell: (l) => duration(l.rtt_s) },
        { label: "through", cell: (l) => (l.via ? html`<${PeerLink} actor=${l.via} name=${l.via} />` : "nobody: direct") },
        { label: "sent", number: true, cell: (l) => bytes(Object.values(l.bytes ?? {}).reduce((a, b) => a + b, 0)) },
      ]} /></section>
    ${Array.isArray(peer.faults) && peer.faults.length > 0 && html`<section class="card"><header><h2>Its faults</h2></header>
      <${Table} caption="Faults of this peer" rows=${peer.faults} columns=${[
        { label: "when", cell: (f) => html`<${When} at=${f.at} />` },
        { label: "what", cell: (f) => f.word },
        { label: "reason", cell: (f) => html`<${Foreign} text=${f.reason} />` },
        { label: "step", number: true, cell: (f) => html`<a href=${faultPlace(f)}>${step(f.step)} ↗</a>` },
        { label: "cost", number: true, cell: (f) => (f.costed ? duration(f.seconds) : NONE) },
      ]} /></section>`}
    <${LogLines} title="Its log lines" actor=${peer.actor} />`;
}

function WhatIf({ peer }) {
  const what = peer.what_if;
  if (!what) return null;
  const now = what.tokens_per_second_before;
  const then = what.after;
  return html`<section class="card what-if" aria-label="What if it left now">
    <header><h2>If it left now</h2><${Help} text="The planner's rates on the table of this moment, without this peer. Nothing is changed by looking." /></header>
    ${what.stage_lost ? html`<p class="failure"><span aria-hidden="true">✕</span> A stage would have nobody: training would wait until somebody takes it up.</p>` : ""}
    <dl class="tiles">
      <${Tile} label="Speed" value=${count(now) + " → " + count(then)} unit="tokens/s" note=${changeOf(now, then)} />
      <${Tile} label="Work done again" value=${duration(what.seconds_again)} note=${Number.isFinite(what.microbatches_again) ? what.microbatches_again + " microbatches" : ""} />
      <${Tile} label="This step" value=${Number.isFinite(what.step_later_s) ? duration(what.step_later_s) + " later" : "–"} note="not counting how long a death takes to be noticed" />
      <${Tile} label=${what.together.length > 0 ? "Their stages" : "Its stage"} value=${what.stage_lost ? "lost" : "goes on"} />
    </dl>
    ${what.together.length > 0 && html`<p>With it, as seats of one process: ${what.together.map((seat, n) => html`${n > 0 && ", "}<${PeerLink} ...${seat} /> (${stageName(seat.stage)})`)}</p>`}
    ${what.text && html`<p class="quiet"><${Foreign} text=${what.text} most=${400} /></p>`}
  </section>`;
}

function changeOf(now, then) {
  if (!(now > 0) || !Number.isFinite(then)) return "";
  const share = then / now - 1;
  return Math.abs(share) < 0.0005 ? "no change" : (share < 0 ? "− " : "+ ") + percent(Math.abs(share));
}

/** Its last steps as stacked bars: one bar a step, the sums of each kind of work. */
function TimeSpent({ steps }) {
  const rows = steps.slice().sort((a, b) => a.step - b.step).slice(-40);
  const longest = Math.max(...rows.map((r) => sum(r.seconds)), 0.001);
  const table = () => html`<${Table} caption="Seconds of each kind by step" rows=${rows.slice().reverse()} columns=${[{ label: "step", number: true, cell: (r) => step(r.step) }, ...KINDS.map((kind) => ({ label: kind, number: true, cell: (r) => duration(r.seconds[kind] ?? 0) }))]} />`;
  return html`<${Picture} id="time-spent" title="Where its time goes" help=${html`<${Help} text="One bar a step, as the peer measured it: what its compute thread did, and how long it waited for input." />`} table=${table}>
    <${KindKey} />
    ${rows.length === 0
      ? html`<p class="quiet">It has not finished a step yet.</p>`
      : html`<svg class="stack" viewBox=${`0 0 ${rows.length * 10} 100`} preserveAspectRatio="none" role="img" aria-label=${`Its last ${rows.length} steps; the longest took ${duration(longest)}`}>${rows.map((row, n) => {
          let top = 100;
          return KINDS.map((kind) => {
            const height = (100 * (row.seconds[kind] ?? 0)) / longest;
            top -= height;
            return height > 0 && html`<rect x=${n * 10 + 0.5} width="9" y=${top} height=${height} fill=${look(kind).colour} class=${"kind-" + kind}><title>${`step ${step(row.step)}: ${kind} ${duration(row.seconds[kind])}`}</title></rect>`;
          });
        })}</svg><p class="axis num"><span>step ${step(rows[0].step)}</span><span>tallest ${duration(longest)}</span><span>step ${step(rows.at(-1).step)}</span></p>`}
  <//>`;
}

/** The peer at the other end of a link. */
function other(link, peer) {
  const actor = link.to === peer.actor ? link.from : link.to;
  return { actor, name: actor.replace(/\.[0-9]+$/, "") };
}

function machineValue(key, value) {
  if (typeof value === "number") return /memory/.test(key) ? bytes(value) : count(value);
  return html`<${Foreign} text=${value} most=${80} />`;
}

const sum = (seconds) => Object.values(seconds).reduce((a, b) => a + b, 0);
const heat = (usage) => (Number.isFinite(usage?.temperature) ? plain(usage.temperature, 0) + " °C" : "");
const power = (usage) => (Number.isFinite(usage?.power) ? plain(usage.power, 0) + " W" : "");
