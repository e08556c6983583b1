// A report is one file: all answers lie in it, by the path they are asked with (see answers.js).

/** {path: answer} in a report file; null when a server answers. */
export const embedded = read();

/** The answer to a path: the very path, else the same with only its `name`, else without any question. */
export function embeddedAnswer(path) {
  const [bare, search = ""] = path.split("?", 2);
  const name = new URLSearchParams(search).get("name");
  return embedded[path] ?? (name ? embedded[bare + "?name=" + name] : embedded[bare]) ?? null;
}

function read() {
  const element = document.getElementById("embedded");
  return element === null ? null : JSON.parse(element.textContent);
}
