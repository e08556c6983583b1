// The key to the colours of a timeline: swatch, letter and word of each kind of work.
import { tools } from "./view.js";
import { KINDS, look } from "./kinds.js";

const { html } = tools;

export function KindKey() {
  return html`<ul class="key">${KINDS.map((kind) => html`<li title=${look(kind).says}><span class=${"swatch kind-" + kind} aria-hidden="true">${look(kind).letter}</span> ${kind}</li>`)}</ul>`;
}
