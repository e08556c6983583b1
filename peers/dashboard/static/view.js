// What every component is made of: Preact's `html` templates and hooks, joined to signals.
//
// For readers who know Python: a *component* is a function from properties to what is to be seen. A *signal* is a box
// with a `.value`; whoever read it is called again when it changes. `useValue(box)` reads a box inside a component.
import { html, render, useState, useEffect, useLayoutEffect, useRef, useMemo } from "./vendor/htm-preact.js";
import { signal, computed, effect } from "./vendor/signals-core.js";

/** The value of a signal; the component is drawn anew when it changes. */
export function useValue(box) {
  const [, again] = useState(0);
  useLayoutEffect(() => {
    const seen = box.peek();
    let drawn = seen;
    return effect(() => {
      const value = box.value;
      if (value !== drawn) {
        drawn = value;
        again((n) => n + 1);
      }
    });
  }, [box]);
  return box.peek();
}

/** Read from this browser what was kept under `key`, else `otherwise`. */
export function kept(key, otherwise) {
  try {
    return localStorage.getItem(key) ?? otherwise;
  } catch {
    return otherwise;
  }
}

/** Keep a text in this browser; one that keeps nothing is no failure. */
export function keep(key, text) {
  try {
    localStorage.setItem(key, text);
  } catch {
    return;
  }
}

export const tools = { html, render, useState, useEffect, useLayoutEffect, useRef, useMemo, signal, computed, effect };

/**
 * Scroll `box`, which contains `element`, so that the element is in its middle; and the page, if the element is outside
 * of it. `scrollIntoView` would also move the place from which the Tab key goes on.
 */
export function showIn(box, element) {
  const [outer, inner] = [box.getBoundingClientRect(), element.getBoundingClientRect()];
  box.scrollLeft += inner.left + inner.width / 2 - outer.left - outer.width / 2;
  if (inner.top < 0 || inner.bottom > innerHeight) scrollBy(0, inner.top + inner.height / 2 - innerHeight / 2);
}
