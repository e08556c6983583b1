// The dashboard: a header with the pages, the page of the address, and the time bar below it.
import { showIn, tools, useValue } from "./view.js";
import { address, href, moment } from "./address.js";
import { refusal, useAnswer } from "./answers.js";
import { connection } from "./stream.js";
import { embedded } from "./embedded.js";
import { access, beginFromAddress, observed, TokenForm, wrongToken } from "./session.js";
import { clock, tame } from "./format.js";
import { ThemeSwitch } from "./theme_choice.js";
import { TimeBar } from "./time_bar.js";
import { Foreign } from "./words.js";
import { STATES } from "./run_state.js";
import { RunPage } from "./pages/run.js";
import { PipelinePage } from "./pages/pipeline.js";
import { TimelinePage } from "./pages/timeline.js";
import { LinksPage } from "./pages/links.js";
import { PeersPage } from "./pages/peers.js";
import { PeerPage } from "./pages/peer.js";
import { FaultsPage } from "./pages/faults.js";
import { PeoplePage } from "./pages/people.js";
import { ResultsPage } from "./pages/results.js";
import { ControlsPage } from "./pages/controls.js";

const { html, render, useEffect, useLayoutEffect } = tools;

const PAGES = [
  ["run", "Run", RunPage],
  ["pipeline", "Pipeline", PipelinePage],
  ["timeline", "Timeline", TimelinePage],
  ["links", "Links", LinksPage],
  ["peers", "Peers", PeersPage],
  ["faults", "Faults", FaultsPage],
  ["people", "People", PeoplePage],
  ["results", "Checkpoints & samples", ResultsPage],
  ["controls", "Controls", ControlsPage],
];

function App() {
  const { page, id } = useValue(address);
  const refused = useValue(refusal);
  const session = useValue(access);
  const answer = useAnswer("run", {}, { topic: "run" });
  const run = answer.data;
  const [, label, Page] = PAGES.find(([name]) => name === page) ?? PAGES[0];
  const title = page === "peers" && id ? "Peer " + tame(id, 60) : label;
  useEffect(() => {
    document.title = title + " · " + (run ? tame(run.run, 60) + " · " : "") + "swarm-peer";
  }, [title, run?.run]);
  useLayoutEffect(() => scrollTo(0, 0), [page, id]);

  return html`
    <a class="skip" href="#main" onClick=${toMain}>To the content</a>
    <${Header} run=${run} page=${page} />
    <${Strips} run=${run} />
    <main id="main" tabindex="-1">
      <h1 class=${page === "run" ? "only-read" : ""}>${page === "peers" && id ? html`Peer <${Foreign} text=${id} most=${60} />` : title}</h1>
      ${refused ? html`<${TokenForm} why=${refused} />` : page === "peers" && id ? html`<${PeerPage} key=${id + session} id=${id} />` : html`<${Page} key=${page + session} />`}
    </main>
    ${embedded === null && html`<${TimeBar} run=${run} />`}
  `;
}

function Header({ run, page }) {
  const watching = useValue(observed);
  const look = STATES[run?.state.word] ?? { symbol: "○", kind: "idle" };
  // The page that is shown is brought into view where the row of pages is too narrow for all.
  useEffect(() => {
    const current = document.querySelector("nav.pages-nav [aria-current]");
    if (current) showIn(current.closest("nav"), current);
  }, [page]);
  return html`<header class="top">
    <div class="brand"><span class="logo" aria-hidden="true">⣿</span> <b><${Foreign} text=${run?.run ?? "swarm-peer"} most=${40} /></b>
      ${run && html`<a class=${"state chip " + look.kind} href=${href("run")} title=${tame(run.state.reason, 200)}><span aria-hidden="true">${look.symbol}</span> ${run.state.word}</a>`}</div>
    <nav class="pages-nav" aria-label="Pages"><ul>${PAGES.filter(([name]) => !watching || name !== "controls").map(
      ([name, label]) => html`<li key=${name}><a href=${href(name)} aria-current=${name === page ? "page" : null}>${label}${name === "faults" && run?.faults ? html` <span class="badge num">${run.faults}</span>` : ""}</a></li>`,
    )}</ul></nav>
    <${ThemeSwitch} />
  </header>`;
}

/** What the reader has to know about what is shown: it is of the past, it is cut off, the disk is full. */
function Strips({ run }) {
  const at = useValue(moment);
  const state = useValue(connection);
  const wrong = useValue(wrongToken);
  return html`<div class="strips" aria-live="polite">
    ${state === "lost" && html`<p class="strip lost"><span aria-hidden="true">▲</span> Connection lost, retrying. What is shown is what was known last.</p>`}
    ${wrong && html`<p class="strip lost"><span aria-hidden="true">▲</span> The token of this address was not taken: ${tame(wrong, 200)}</p>`}
    ${at !== null && html`<p class="strip past"><span aria-hidden="true">◷</span> You are looking at ${clock(at)}, not at now. <a href=${href(address.peek().page, { ...address.peek().params, at: null }, address.peek().id)}>${run?.live ? "Back to live" : "To the end"}</a></p>`}
    ${embedded !== null && html`<p class="strip past"><span aria-hidden="true">▤</span> A report: it holds the end of the run; pictures of other moments need the run's home and <code>swarm-peer dashboard</code>.</p>`}
    ${(run?.warnings ?? []).map((text) => html`<p class="strip slow"><span aria-hidden="true">▲</span> ${tame(text, 300)}</p>`)}
  </div>`;
}

function toMain(event) {
  // The address's fragment is the page's; the skip link may not change it.
  event.preventDefault();
  document.getElementById("main").focus();
}

const place = document.getElementById("app");
place.textContent = "";
beginFromAddress();
render(html`<${App} />`, place);
