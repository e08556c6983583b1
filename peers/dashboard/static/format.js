// Numbers as people read them, with their units. A number that is missing is a dash.

export const NONE = "–";

const grouped = new Intl.NumberFormat("en-GB", { maximumFractionDigits: 0 });

const known = (x) => typeof x === "number" && Number.isFinite(x);

/** 47,360; above a million 1.23 M. */
export function count(x) {
  if (!known(x)) return NONE;
  const size = Math.abs(x);
  if (size >= 1e12) return (x / 1e12).toFixed(2) + " T";
  if (size >= 1e9) return (x / 1e9).toFixed(2) + " G";
  if (size >= 1e6) return (x / 1e6).toFixed(2) + " M";
  if (size >= 100 || Number.isInteger(x)) return grouped.format(x);
  return size >= 10 ? x.toFixed(1) : x.toPrecision(2);
}

export const plain = (x, digits) => (known(x) ? x.toFixed(digits) : NONE);

export const percent = (share) => (known(share) ? (100 * share).toFixed(share < 0.0995 && share > 0 ? 1 : 0) + " %" : NONE);

/** Bytes: 1.5 MB. */
export function bytes(x) {
  if (!known(x)) return NONE;
  for (const unit of ["B", "kB", "MB", "GB"]) {
    if (Math.abs(x) < 999.5) return (unit === "B" || Math.abs(x) >= 100 ? x.toFixed(0) : x.toFixed(1)) + " " + unit;
    x /= 1000;
  }
  return x.toFixed(1) + " TB";
}

/** Bytes a second, as providers write a link's speed: 20 Mbit/s. */
export const linkRate = (x) => (known(x) ? bytes(8 * x).replace(/B$/, "bit/s") : NONE);

/** Seconds: 340 ms, 7.4 s, 5 min 02 s, 2 h 05 min, 3 d 4 h. */
export function duration(s) {
  if (!known(s)) return NONE;
  const sign = s < 0 ? "−" : "";
  s = Math.abs(s);
  if (s === 0) return "0 s";
  if (s < 0.9995) return sign + (1000 * s).toFixed(0) + " ms";
  if (s < 9.95) return sign + s.toFixed(1) + " s";
  if (s < 59.5) return sign + s.toFixed(0) + " s";
  const two = (n) => String(n).padStart(2, "0");
  const whole = Math.round(s);
  if (whole < 3600) return sign + Math.floor(whole / 60) + " min " + two(whole % 60) + " s";
  const minutes = Math.round(s / 60);
  if (minutes < 1440) return sign + Math.floor(minutes / 60) + " h " + two(minutes % 60) + " min";
  const hours = Math.round(s / 3600);
  return sign + Math.floor(hours / 24) + " d " + (hours % 24) + " h";
}

/** The wall clock at unix seconds, in the reader's time zone: 14:03:21, with the day when it is not `today`'s. */
export function clock(at, today = Date.now() / 1000) {
  if (!known(at)) return NONE;
  const time = new Date(1000 * at);
  const two = (n) => String(n).padStart(2, "0");
  const hour = two(time.getHours()) + ":" + two(time.getMinutes()) + ":" + two(time.getSeconds());
  if (time.toDateString() === new Date(1000 * today).toDateString()) return hour;
  return time.getFullYear() + "-" + two(time.getMonth() + 1) + "-" + two(time.getDate()) + " " + hour;
}

/** Step and version as people count them: the first step is 1. */
export const step = (n) => (known(n) && n >= 0 ? grouped.format(n + 1) : NONE);

export const stageName = (n) => (known(n) && n >= 0 ? "stage " + n : "no stage");

/**
 * A text that somebody else chose (a name, a reason, a sample): without signs that turn or hide other text, and cut.
 * It still has to be put into the page as text, never as markup, which `html` does.
 */
export function tame(text, most = 200) {
  const letters = Array.from(String(text ?? "").slice(0, 4 * most), (c) => (/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/u.test(c) && c !== "\n" ? "\ufffd" : c));
  return letters.length > most ? letters.slice(0, most - 1).join("") + "…" : letters.join("");
}
