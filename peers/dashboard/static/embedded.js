// A report is one file: all answers lie in it, by the path they are asked with (see answers.js).

/** {path: answer} in a report file; null when a server answers. */
export const embedded = read();

const PEERS = "/api/v1/peers";

/** The answer to a path: the very path, else the same with only its `name`, else without any question. */
export function embeddedAnswer(path) {
  const [bare, search = ""] = path.split("?", 2);
  if (bare.startsWith(PEERS + "/")) return peerAnswer(decodeURIComponent(bare.slice(PEERS.length + 1)));
  const name = new URLSearchParams(search).get("name");
  return embedded[path] ?? (name ? embedded[bare + "?name=" + name] : embedded[bare]) ?? null;
}

/** One peer, by actor or by peer id as a server does: then its newest start. */
function peerAnswer(id) {
  const starts = embedded[PEERS].peers.filter((peer) => peer.peer === id).sort((a, b) => (b.left_at ?? Infinity) - (a.left_at ?? Infinity));
  return embedded[PEERS + "/" + id] ?? embedded[PEERS + "/" + starts[0]?.actor] ?? null;
}

function read() {
  const element = document.getElementById("embedded");
  return element === null ? null : JSON.parse(element.textContent);
}
