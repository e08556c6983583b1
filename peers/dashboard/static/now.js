// What time it is for the reader: the moment that is looked at; live, the server's clock (the reader's may differ); of a
// run that nobody writes any more, its last event.
import { tools } from "./view.js";
import { moment } from "./address.js";
import { embedded } from "./embedded.js";
import { skew, topicData } from "./stream.js";

const { signal, computed, effect } = tools;

const ticking = signal(Date.now() / 1000);

/** Unix seconds; a second's steps while live. */
export const now = computed(() => {
  const run = embedded?.["/api/v1/run"] ?? topicData("run").value;
  if (moment.value !== null) return moment.value;
  return run !== null && !run.live ? run.last_at : ticking.value + skew.value;
});

/** Ages are only told while they go on growing: of a run that is live, not of a moment of it or of its report. */
export const agesGrow = computed(() => moment.value === null && embedded === null && topicData("run").value?.live === true);

setInterval(() => {
  if (!document.hidden && agesGrow.peek()) ticking.value = Date.now() / 1000;
}, 1000);

effect(() => {
  if (topicData("run").value?.live) ticking.value = Date.now() / 1000; // what has just happened is not in the future
});
