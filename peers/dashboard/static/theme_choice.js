// Light or dark: the system's preference until the reader chooses (theme.js applies a kept choice before the first paint).
import { tools, keep, useValue } from "./view.js";

const { html, signal } = tools;
const system = matchMedia("(prefers-color-scheme: dark)");

/** "light" or "dark": what is in force. */
export const theme = signal(current());

system.addEventListener("change", () => (theme.value = current()));

export function ThemeSwitch() {
  const other = useValue(theme) === "dark" ? "light" : "dark";
  const choose = () => {
    document.documentElement.dataset.theme = other;
    keep("theme", other);
    theme.value = other;
  };
  return html`<button class="quiet-button" onClick=${choose}><span aria-hidden="true">${other === "dark" ? "☾" : "☀"}</span> ${other}<span class="only-read"> colours</span></button>`;
}

function current() {
  return document.documentElement.dataset.theme ?? (system.matches ? "dark" : "light");
}
