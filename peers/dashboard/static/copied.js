// Copying a text. Browsers let a page write to the clipboard on https and on this machine alone: elsewhere it is selected.

/** Copies `text`, or else selects it where it stands, in `element`. What was done, in words. */
export async function copied(text, element) {
  try {
    await navigator.clipboard.writeText(text);
    return "Copied.";
  } catch {
    getSelection().selectAllChildren(element);
    return "It is selected: copy it with Ctrl+C (⌘C on a Mac), or by the menu of your browser.";
  }
}
