// The time bar on every page: drag to a moment, play from there, jump from mark to mark, or follow live.
import { tools, useValue } from "./view.js";
import { change, moment } from "./address.js";
import { useAnswer } from "./answers.js";
import { clock, duration, tame } from "./format.js";
import { MARKS } from "./kinds.js";

const { html, signal, useEffect, useState } = tools;
const SPEEDS = [1, 2, 5, 10, 30, 100, 300, 1000];
const TICK_MS = 500; // twice a second a page is asked for while it plays

const playing = signal(false);

export function TimeBar({ run }) {
  const answer = useAnswer("marks", {}, { every: 10, timeless: true });
  const at = useValue(moment);
  const plays = useValue(playing);
  const [speed, setSpeed] = useState(10);
  const first = answer.data?.first ?? run?.first_at ?? null;
  const last = Math.max(answer.data?.last ?? 0, run?.last_at ?? 0) || null;

  useEffect(() => {
    if (!plays || last === null) return undefined;
    let mark = performance.now();
    const timer = setInterval(() => {
      if (!playing.peek()) return; // stopped, and this timer is about to be
      const passed = ((performance.now() - mark) / 1000) * speed;
      mark = performance.now();
      const next = (moment.peek() ?? first) + passed;
      if (next >= last) {
        playing.value = false;
        change({ at: run?.live ? null : last.toFixed(2) });
      } else {
        change({ at: next.toFixed(2) });
      }
    }, TICK_MS);
    return () => clearInterval(timer);
  }, [plays, speed, first, last, run?.live]);

  if (first === null || last === null || last <= first) {
    return html`<div class="time-bar"><p class="quiet">The time bar appears with the first event.</p></div>`;
  }
  const marks = answer.data?.marks ?? [];
  const here = at ?? last;
  const look = (when) => {
    playing.value = false;
    change({ at: when === null ? null : Math.max(first, Math.min(last, when)).toFixed(2) });
  };
  const play = () => {
    if (!plays && here >= last - 0.5) change({ at: first.toFixed(2) }); // from the end there is only the beginning
    playing.value = !plays;
  };
  const before = marks.filter((m) => m.at < here - 0.05).at(-1);
  const after = marks.find((m) => m.at > here + 0.05);
  const near = nearest(marks, here, (last - first) / 200);
  const words = clock(here) + ", " + duration(here - first) + " into the run";

  return html`<section class="time-bar" aria-label="Time">
    <div class="time-buttons">
      <button class=${"live-button" + (at === null ? " on" : "")} aria-pressed=${at === null ? "true" : "false"} onClick=${() => look(null)}
        title=${run?.live ? "Follow the run as it goes on" : "The end of what is known"}><span aria-hidden="true">${run?.live ? "●" : "■"}</span> ${run?.live ? "live" : "end"}</button>
      <button onClick=${play} aria-label=${plays ? "Stop playing" : "Play"} title=${plays ? "Stop playing" : "Play from here"}><span aria-hidden="true">${plays ? "‖" : "▶"}</span></button>
      <label class="speed"><span class="only-read">Speed</span><select onChange=${(e) => setSpeed(Number(e.target.value))}>
        ${SPEEDS.map((s) => html`<option value=${s} selected=${s === speed}>×${s}</option>`)}</select></label>
      <button disabled=${!before} onClick=${() => look(before.at)} aria-label="To the mark before" title=${before ? markText(before) : ""}>◂<span class="wide"> mark</span></button>
      <button disabled=${!after} onClick=${() => look(after.at)} aria-label="To the next mark" title=${after ? markText(after) : ""}><span class="wide">mark </span>▸</button>
    </div>
    <div class="track">
      <div class="marks" aria-hidden="true">${marks.map(
        (m) => html`<button key=${m.kind + m.at + m.id} tabindex="-1" class=${"mark " + (MARKS[m.kind] ? m.kind : "other")} style=${{ left: (100 * (m.at - first)) / (last - first) + "%" }}
          title=${markText(m)} onClick=${() => look(m.at)}>${(MARKS[m.kind] ?? { symbol: "•" }).symbol}</button>`,
      )}</div>
      <input type="range" min=${first} max=${last} step=${Math.max(0.01, Number(((last - first) / 2000).toPrecision(2)))} value=${here}
        aria-label="Moment of the run" aria-valuetext=${words} onInput=${(e) => look(Number(e.target.value))} />
    </div>
    <p class="time-words num"><b>${clock(here)}</b> <span>${duration(here - first)} in</span>
      <span class="mark-words">${near ? markText(near) : ""}</span></p>
  </section>`;
}

function markText(mark) {
  const { symbol, word } = MARKS[mark.kind] ?? { symbol: "•", word: mark.kind };
  return symbol + " " + word + ": " + tame(mark.text, 120);
}

function nearest(marks, at, within) {
  let best = null;
  for (const mark of marks) {
    const far = Math.abs(mark.at - at);
    if (far <= within && (best === null || far < Math.abs(best.at - at))) best = mark;
  }
  return best;
}
