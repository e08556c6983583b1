// Samples of the model's text, side by side: the version, the held-out loss then, the prompt, and what it wrote on.
import { tools } from "./view.js";
import { plain, tame } from "./format.js";
import { When } from "./words.js";

const { html } = tools;

export function SampleCards({ samples }) {
  return html`<div class="samples">${samples.map(
    (sample) => html`<figure class="sample" key=${sample.version + ":" + sample.prompt}>
      <figcaption><b>after ${sample.version} steps</b> <span class="quiet"><${When} at=${sample.at} />${Number.isFinite(sample.heldout_loss) ? html` · held-out loss <span class="num">${plain(sample.heldout_loss, 3)}</span>` : ""}</span></figcaption>
      <blockquote><bdi><b>${tame(sample.prompt, 300)}</b>${tame(rest(sample), 1500)}</bdi></blockquote>
    </figure>`,
  )}</div>`;
}

/** What the model added: some logs hold the prompt in the text as well. */
function rest(sample) {
  return sample.text.startsWith(sample.prompt) ? sample.text.slice(sample.prompt.length) : sample.text;
}
