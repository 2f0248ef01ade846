// Formats numbers and times for people.

const BYTES = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
const whole = new Intl.NumberFormat("en");

function three(value) {
  return value >= 100 || Number.isInteger(value) ? whole.format(Math.round(value)) : value.toFixed(value >= 10 ? 1 : 2);
}

export function bytes(value) {
  let unit = 0;
  while (Math.abs(value) >= 1000 && unit < BYTES.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit ? three(value) : whole.format(Math.round(value))} ${BYTES[unit]}`;
}

export function count(value) {
  return whole.format(Math.round(value));
}

export function perSecond(value) {
  if (value >= 1e6) return `${three(value / 1e6)} M/s`;
  return `${value >= 10 ? count(value) : Math.round(value * 10) / 10} /s`;
}

export function bytesPerSecond(value) {
  return `${bytes(value)}/s`;
}

export function percent(ratio) {
  const value = ratio * 100;
  return `${value > 0 && value < 10 ? value.toFixed(1) : Math.round(value)} %`;
}

/** Formats a duration in seconds, in its two largest units. */
export function span(seconds) {
  if (seconds < 1e-3) return `${three(seconds * 1e6)} µs`;
  if (seconds < 1) return `${three(seconds * 1e3)} ms`;
  if (seconds < 60) return `${seconds < 10 ? Math.round(seconds * 10) / 10 : Math.floor(seconds)} s`;
  const total = Math.floor(seconds);
  const parts = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  const first = parts.findIndex(([, size]) => total >= size);
  const [large, small] = [parts[first], parts[first + 1]];
  const rest = small ? Math.floor((total % large[1]) / small[1]) : 0;
  return `${Math.floor(total / large[1])} ${large[0]}${rest ? ` ${rest} ${small[0]}` : ""}`;
}

/** Formats a time that was used; no time is "0 s". */
export function used(seconds) {
  return seconds ? span(seconds) : "0 s";
}

let ahead = 0; // seconds by which this computer's clock is ahead of the daemon's

/** Sets the daemon's present time. */
export function setNow(unix) {
  ahead = Date.now() / 1000 - unix;
}

/** Returns the seconds since a time of the daemon's clock. */
export function since(unix) {
  return Math.max(0, Date.now() / 1000 - ahead - unix);
}

/** Formats like `span`, in the largest unit only, so that the text does not change every second. */
export function ago(seconds) {
  return seconds < 1.5 ? "now" : `${span(Math.floor(seconds)).split(" ").slice(0, 2).join(" ")} ago`;
}

export function absolute(unix) {
  return new Date(unix * 1000).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "medium" });
}
