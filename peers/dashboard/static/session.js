// Who may look, and who may steer: the token of the printed address becomes a cookie that no script can read.
import { tools } from "./view.js";
import { ask, post, refusal } from "./answers.js";
import { embedded } from "./embedded.js";
import { redial } from "./stream.js";

const { html, signal, useState } = tools;

/** Why the token of the address was not taken; empty: there was none, or it was. */
export const wrongToken = signal("");
/** What this reader may: none, public, read or organiser. */
export const access = signal("none");
/** Whether this is an observer's dashboard, which has no organiser. */
export const observed = signal(false);

/** Exchange a token for the session's cookie. Raises the server's Error when it is not the right one. */
export async function begin(token) {
  await post("session", { token });
  refusal.value = null;
  wrongToken.value = "";
  await learnAccess();
  redial();
}

/** Ask what the cookie that this browser holds allows. */
export async function learnAccess() {
  if (embedded !== null) return;
  const reply = await ask("/api/v1/session").catch(() => ({}));
  observed.value = reply.observed === true;
  access.value = reply.access ?? "none";
}

const TOKEN = /^#token=([^&]+)/;

/** The printed address ends in `#token=…`: use it and take it out of the address, so that nobody passes it on. */
export async function beginFromAddress() {
  // Opened where the page is shown already, it is but another fragment: nothing is loaded anew.
  addEventListener("hashchange", () => TOKEN.test(location.hash) && takeToken());
  return takeToken();
}

async function takeToken() {
  const found = location.hash.match(TOKEN);
  if (!found) return learnAccess();
  history.replaceState(null, "", "#/run");
  dispatchEvent(new HashChangeEvent("hashchange"));
  return begin(decodeURIComponent(found[1])).catch((error) => (wrongToken.value = error.message));
}

/** Asks for the token. */
export function TokenForm({ why }) {
  const [token, setToken] = useState("");
  const [failure, setFailure] = useState("");
  const send = async (event) => {
    event.preventDefault();
    setFailure("");
    await begin(token.trim()).catch((error) => setFailure(error.message));
  };
  return html`<form class="card form" onSubmit=${send}>
    <h2>${why}</h2>
    <p>The coordinator printed an address that ends in <code>#token=…</code>. Open that, or paste what follows the equals sign.</p>
    <label>Token <input type="password" autocomplete="off" required value=${token} onInput=${(e) => setToken(e.target.value)} /></label>
    <div class="buttons"><button class="primary">Go on</button></div>
    ${failure && html`<p class="failure" role="alert">▲ ${failure}</p>`}
  </form>`;
}
