// The address of what is seen: `#/timeline?at=1795747356.2&first=3`. A link shows what its sender saw.
//
// `address.value` is {page, id, params}. The moment is one of the params: `at` in unix seconds, absent while live.
import { tools } from "./view.js";
import { embedded } from "./embedded.js";

const { signal, computed } = tools;

export const address = signal(read(location.hash));

/** Unix seconds of the moment that is looked at; null: now. A report holds one moment: its end. */
export const moment = computed(() => {
  if (embedded !== null) return null;
  const at = Number.parseFloat(address.value.params.at);
  return Number.isFinite(at) ? at : null;
});

addEventListener("hashchange", () => {
  address.value = read(location.hash);
});

/** The href of a page. The moment goes along unless `params` has its own `at` (null: live). */
export function href(page, params = {}, id = "") {
  const all = { at: address.peek().params.at, ...params };
  return "#/" + page + (id ? "/" + encodeURIComponent(id) : "") + query(all);
}

/** Change some params of the page that is shown; null removes one. Makes no entry in the browser's history. */
export function change(params) {
  const { page, id, params: old } = address.peek();
  const hash = "#/" + page + (id ? "/" + encodeURIComponent(id) : "") + query({ ...old, ...params });
  history.replaceState(null, "", hash);
  address.value = read(hash);
}

/** `?a=1&b=2` with its keys in order; empty if nothing is set. */
export function query(params) {
  const set = Object.entries(params).filter(([, value]) => value !== null && value !== undefined && value !== "");
  set.sort(([a], [b]) => (a < b ? -1 : 1));
  return set.length ? "?" + set.map(([k, v]) => k + "=" + encodeURIComponent(v)).join("&") : "";
}

function read(hash) {
  const [path, search = ""] = hash.replace(/^#\/?/, "").split("?", 2);
  const [, page, id] = path.match(/^([^/]*)\/?(.*)$/s); // some browsers give back %2F as a slash: it is the id's
  let name = id;
  try {
    name = decodeURIComponent(id);
  } catch {
    name = id; // a broken escape: shown as it is
  }
  return { page: page || "run", id: name, params: Object.fromEntries(new URLSearchParams(search)) };
}
