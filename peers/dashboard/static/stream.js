// The live stream: one EventSource for the topics that the page shows.
//
// It is closed while the page is hidden, while a moment of the past is looked at, and in a report file; it then opens
// again and catches up. EventSource dials again by itself after a failure, and tells the server the last id it saw. It
// notices no failure if the network drops everything without a word: then the silence tells it.
import { tools } from "./view.js";
import { moment } from "./address.js";
import { embedded } from "./embedded.js";

const { signal, effect } = tools;

/** off, connecting, open or lost. */
export const connection = signal("off");
/** Counts what has arrived: who shows an answer that has no topic of its own asks anew when this has changed. */
export const pulse = signal(0);
/** The server's clock less the reader's, in seconds. */
export const skew = signal(0);

const SILENCE_MS = 45_000; // three pings of the server

const wanted = new Map(); // topic → how many components want it
const received = new Map(); // topic → signal of the newest data, null before the first
const visible = signal(!document.hidden);
const chosen = signal(""); // the topics, as they stand in the address

let source = null;
let last = null; // {id, topics} of the newest event
let failures = 0;
let retry = 0;
let watchdog = 0;

/** The signal that holds a topic's newest data. */
export function topicData(topic) {
  if (!received.has(topic)) received.set(topic, signal(null));
  return received.get(topic);
}

/** A component wants a topic; call what is returned when it does not any more. */
export function want(topic) {
  wanted.set(topic, (wanted.get(topic) ?? 0) + 1);
  settle();
  return () => {
    wanted.set(topic, wanted.get(topic) - 1);
    if (wanted.get(topic) === 0) wanted.delete(topic);
    settle();
  };
}

/** Dial again now: what is allowed has changed (a session has begun). */
export function redial() {
  last = null;
  close();
  open();
}

let settling = 0;
function settle() {
  // Components of one page come and go together: one change of the stream for all of them.
  clearTimeout(settling);
  settling = setTimeout(() => {
    for (const [topic, box] of received) {
      if (wanted.has(topic) || box.peek() === null) continue;
      box.value = null; // old by the time that somebody wants it again,
      last = null; // and then it has to come whole
    }
    chosen.value = [...wanted.keys()].sort().join(",");
  }, 20);
}

document.addEventListener("visibilitychange", () => {
  visible.value = !document.hidden;
});

effect(() => {
  const topics = chosen.value;
  const live = visible.value && moment.value === null && topics !== "" && embedded === null;
  close();
  if (live) open();
});

function open() {
  if (chosen.peek() === "" || embedded !== null) return;
  if (connection.peek() !== "lost") connection.value = "connecting"; // until it is open again, it is lost
  // The id of another set of topics says nothing about these: only a stream of the same topics resumes.
  const resume = last?.topics === chosen.peek() ? "&last_id=" + encodeURIComponent(last.id) : "";
  source = new EventSource("/events?topics=" + chosen.peek() + resume);
  heard();
  source.addEventListener("open", () => {
    failures = 0;
    heard();
    connection.value = "open";
  });
  source.addEventListener("snapshot", (event) => take(event, false));
  source.addEventListener("change", (event) => take(event, true));
  source.addEventListener("ping", (event) => {
    heard();
    connection.value = "open";
    skew.value = JSON.parse(event.data).at - Date.now() / 1000;
  });
  source.addEventListener("error", failed);
}

function close() {
  clearTimeout(retry);
  clearTimeout(watchdog);
  source?.close();
  source = null;
  connection.value = "off";
}

function take(event, merge) {
  heard();
  const { topic, data } = JSON.parse(event.data);
  const box = topicData(topic);
  box.value = merge ? { ...box.peek(), ...data } : data;
  if (event.lastEventId) last = { id: event.lastEventId, topics: chosen.peek() };
  connection.value = "open";
  pulse.value += 1;
}

function heard() {
  clearTimeout(watchdog);
  watchdog = setTimeout(() => {
    close();
    connection.value = "lost";
    open();
  }, SILENCE_MS);
}

function failed() {
  connection.value = "lost";
  if (source !== null && source.readyState === EventSource.CLOSED) {
    // The server refused; the browser does not dial again after that, so we do, more and more seldom.
    source.close();
    failures += 1;
    clearTimeout(retry);
    clearTimeout(watchdog);
    retry = setTimeout(open, Math.min(10_000, 500 * 2 ** failures));
  }
}
