// Runs before the first paint, so that a page that is dark does not flash white.
// The reader's choice is kept in this browser; without one, the system's preference holds.
(function () {
  let theme = null;
  try {
    theme = localStorage.getItem("theme");
  } catch {
    // A browser that keeps nothing.
  }
  if (theme !== "light" && theme !== "dark") theme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  document.documentElement.dataset.theme = theme;
})();
