// Small pieces of text that every page uses: what peers wrote, peers' names, times, numbers with their meaning.
import { tools, useValue } from "./view.js";
import { href } from "./address.js";
import { clock, duration, tame, NONE } from "./format.js";
import { agesGrow, now } from "./now.js";

const { html } = tools;

/** A text from elsewhere: put in as text, cut, and kept from turning the text around it (bdi). */
export function Foreign({ text, most = 200, class: name = "" }) {
  return html`<bdi class=${"foreign " + name} title=${tame(text, 500)}>${tame(text, most)}</bdi>`;
}

/** A peer: the end of its id, as a link to its page. */
export function PeerLink({ actor, peer, name, plain = false }) {
  const shown = html`<bdi class="peer" title=${"actor " + tame(actor, 120)}>${tame(name || actor || NONE, 24)}</bdi>`;
  if (plain || !(peer || actor)) return shown;
  return html`<a class="peer-link" href=${href("peers", {}, peer || actor)}>${shown}</a>`;
}

/** A time: its age while live, the wall clock otherwise. */
export function When({ at }) {
  const grows = useValue(agesGrow);
  const present = useValue(now);
  if (!Number.isFinite(at)) return html`<span>${NONE}</span>`;
  const age = present - at;
  const text = grows && age < 86_400 ? duration(Math.max(0, Math.round(age))) + " ago" : clock(at);
  return html`<time class="num" datetime=${new Date(1000 * at).toISOString()} title=${new Date(1000 * at).toString()}>${text}</time>`;
}

/** How long something has lasted, for a sentence: "for 40 s". */
export function Since({ at }) {
  const present = useValue(now);
  return Number.isFinite(at) ? html`<span class="num">for ${duration(Math.max(0, Math.round(present - at)))}</span>` : null;
}

/** A number with its name, and on demand what it means and where it comes from. */
export function Tile({ label, value, unit = "", note = "", help, children }) {
  return html`<div class="tile">
    <dt>${label}${help && html`<${Help} text=${help} label=${label} />`}</dt>
    <dd><span class="value">${value}</span>${unit && html`<span class="unit"> ${unit}</span>`}
      ${note && html`<span class="note">${note}</span>`}${children}</dd>
  </div>`;
}

/** A question mark that opens an explanation: by mouse, by keyboard, by touch. */
export function Help({ text, label = "" }) {
  return html`<details class="help">
    <summary aria-label=${"What does “" + (label || "this") + "” mean?"}>?</summary>
    <span class="bubble">${text}</span>
  </details>`;
}

/** Symbol and word of a state, never a colour alone. */
export function State({ symbol, word, why }) {
  return html`<span class=${"state " + stateClass(symbol, word)}><span aria-hidden="true">${shown(symbol)}</span> ${tame(word, 40)}${why ? html`: ${tame(why, 80)}` : ""}</span>`;
}

/** Some systems have the pause sign only as a coloured picture, or not at all. */
const shown = (symbol) => (symbol === "⏸" ? "‖" : symbol);

/** The class that colours a state. Who left because it was told to is no trouble. */
export function stateClass(symbol, word) {
  if (word === "left") return "idle";
  return { "●": "good", "◐": "joining", "○": "idle", "▲": "slow", "✕": "lost", "◇": "leaving", "⏸": "idle" }[symbol] ?? "idle";
}

/** A share as a bar beside its number. */
export function Meter({ share, label, kind = "" }) {
  const width = Math.max(0, Math.min(1, Number.isFinite(share) ? share : 0));
  return html`<span class=${"meter " + kind} role="img" aria-label=${label}><span style=${{ width: 100 * width + "%" }}></span></span>`;
}

/** What stands where there is nothing yet, or where an answer failed. */
export function Status({ answer, empty = "Nothing yet." }) {
  if (answer.error) return html`<p class="failure" role="alert"><span aria-hidden="true">▲</span> ${tame(answer.error, 300)}</p>`;
  if (answer.data === null) return html`<p class="quiet" role="status">Loading…</p>`;
  return html`<p class="quiet">${empty}</p>`;
}
