// Light or dark: the system's preference until the reader chooses (theme.js sets it before the first paint).
import { tools, keep, kept, useValue } from "./view.js";

const { html, signal } = tools;
const root = document.documentElement;

/** "light" or "dark": what is in force. */
export const theme = signal(root.dataset.theme);

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", (event) => {
  if (kept("theme", null) === null) set(event.matches ? "dark" : "light");
});

export function ThemeSwitch() {
  const other = useValue(theme) === "dark" ? "light" : "dark";
  const choose = () => {
    set(other);
    keep("theme", other);
  };
  return html`<button class="quiet-button" onClick=${choose}><span aria-hidden="true">${other === "dark" ? "☾" : "☀"}</span> ${other}<span class="only-read"> colours</span></button>`;
}

function set(name) {
  root.dataset.theme = name;
  theme.value = name;
}
