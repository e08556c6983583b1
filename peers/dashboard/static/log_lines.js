// Lines of the event log in words, newest first, with a filter by kind and more on demand.
import { tools } from "./view.js";
import { useAnswer } from "./answers.js";
import { clock } from "./format.js";
import { Foreign, Status } from "./words.js";

const { html, useState } = tools;

const SEVERITY = { error: ["✕", "lost"], warning: ["▲", "slow"], info: ["·", ""] };

export function LogLines({ title, actor = null, limit = 30 }) {
  const [most, setMost] = useState(limit);
  const answer = useAnswer("log", { actor, limit: most }, { every: 4 });
  const lines = answer.data?.lines ?? [];
  return html`<section class="card" aria-label=${title}>
    <header><h2>${title}</h2></header>
    ${lines.length === 0
      ? html`<${Status} answer=${answer} empty="No line." />`
      : html`<ol class="log" tabindex="0" aria-label=${title}>${lines.map((line, n) => {
          const [symbol, kind] = SEVERITY[line.severity] ?? SEVERITY.info;
          return html`<li key=${line.at + ":" + n} class=${kind}><time class="num">${clock(line.at)}</time>
            <span class="log-kind" title=${line.severity}><span aria-hidden="true">${symbol}</span> ${line.kind}</span>
            <${Foreign} text=${line.text} most=${400} /></li>`;
        })}</ol>`}
    ${lines.length >= most && most < 200 && html`<p><button onClick=${() => setMost(Math.min(200, most * 3))}>More lines</button></p>`}
  </section>`;
}
