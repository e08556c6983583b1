// Answers of the JSON API, for components: `useAnswer("faults", {limit: 50}, {topic: "faults"})`.
//
// * live, with a topic: the stream's data, as long as the first page is asked for;
// * live, without one: fetched, and again when the stream has told of something new, at most every `every` seconds;
// * a moment of the past: fetched with `at`. While one request is under way the newest wish waits, the others lapse;
// * in a report file: what lies in it.
// `timeless`: the answer is about the whole run, whatever moment is looked at.
import { tools, useValue } from "./view.js";
import { moment, query } from "./address.js";
import { embedded, embeddedAnswer } from "./embedded.js";
import { connection, pulse, topicData, want } from "./stream.js";

const { signal, useEffect, useRef, useState, useMemo } = tools;

/** Why the server lets this reader read nothing: then the page asks for a token. Null: it does. */
export const refusal = signal(null);

const NOTHING = signal(null);
const underway = new Map(); // path → promise of its answer

/** {data, error}: `data` is null before the first answer and stays the old one while a new one is fetched. */
export function useAnswer(path, params = {}, { topic = null, every = 5, skip = false, timeless = false } = {}) {
  const at = useValue(moment);
  const streams = topic !== null && at === null && embedded === null && !skip;
  const box = useMemo(() => (streams ? topicData(topic) : NOTHING), [streams, topic]);
  const streamed = useValue(box);
  useEffect(() => (streams ? want(topic) : undefined), [streams, topic]);

  const full = "/api/v1/" + path + query(timeless ? params : { ...params, at });
  const state = useValue(connection);
  // A stream that cannot be had (refused, or cut by a proxy): its topics are fetched, so that the reason is seen.
  const fetches = !skip && (!streams || (state === "lost" && streamed === null));
  const [answer, setAnswer] = useState({ data: null, error: null });
  const wish = useRef({ full: null, busy: false, gone: false, next: null });

  useEffect(() => {
    const own = wish.current;
    own.gone = false;
    return () => {
      own.gone = true;
    };
  }, []);
  useEffect(() => {
    if (fetches) fetchNewest(wish.current, full, setAnswer);
  }, [full, fetches]);
  useRefetch(fetches && at === null && embedded === null, every, () => fetchNewest(wish.current, full, setAnswer), full);

  if (streams && streamed !== null) return { data: streamed, error: null };
  return answer;
}

/** One answer, or an Error with a text for people. */
export async function ask(full) {
  if (embedded !== null) {
    const found = embeddedAnswer(full);
    if (found === null) throw new Error("This report does not hold that part of the run.");
    return found;
  }
  // Two components that ask the same at once share the answer.
  if (!underway.has(full)) {
    const answer = fetch(full, { headers: { Accept: "application/json" } }).then(read);
    underway.set(full, answer.then(allowed, refused).finally(() => underway.delete(full)));
  }
  return underway.get(full);
}

function allowed(body) {
  refusal.value = null;
  return body;
}

function refused(error) {
  if (error.status === 401) refusal.value = error.message;
  throw error;
}

/** POST as the organiser. The header cannot be sent by a foreign page without being asked first. */
export async function post(path, body) {
  const reply = await fetch("/api/v1/" + path, {
    method: "POST",
    headers: { "Content-Type": "application/json", "X-Swarm-Peer": "1" },
    body: JSON.stringify(body),
  });
  return read(reply);
}

async function read(reply) {
  const body = await reply.json().catch(() => null);
  if (reply.ok) return body;
  const error = new Error(String(body?.error ?? "The server answered " + reply.status + "."));
  error.status = reply.status;
  throw error;
}

async function fetchNewest(own, full, setAnswer) {
  if (own.busy) {
    own.next = full;
    return;
  }
  own.busy = true;
  try {
    const data = await ask(full);
    if (!own.gone) setAnswer({ data, error: null });
  } catch (error) {
    const text = error instanceof TypeError ? "The dashboard cannot be reached; retrying." : error.message;
    if (!own.gone) setAnswer((old) => ({ data: old.data, error: text }));
  }
  own.busy = false;
  const next = own.next;
  own.next = null;
  if (next !== null && !own.gone) fetchNewest(own, next, setAnswer);
}

/** Calls `again` after the stream has brought something, at most every `every` seconds. */
function useRefetch(active, every, again, key) {
  const last = useRef(0);
  useEffect(() => {
    if (!active) return undefined;
    last.current = performance.now();
    let timer = 0;
    let seen = pulse.peek();
    const stop = pulse.subscribe((n) => {
      if (n === seen || timer) return;
      seen = n;
      const wait = Math.max(0, 1000 * every - (performance.now() - last.current));
      timer = setTimeout(() => {
        timer = 0;
        last.current = performance.now();
        again();
      }, wait);
    });
    return () => {
      clearTimeout(timer);
      stop();
    };
  }, [active, every, key]);
}
