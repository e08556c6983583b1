// Runs before the first paint, so that a page that was switched to dark does not flash white.
// The choice is kept in this browser; without one, the system's preference holds (base.css).
(function () {
  try {
    const chosen = localStorage.getItem("theme");
    if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
  } catch {
    // A browser that keeps nothing: the system's preference holds.
  }
})();
