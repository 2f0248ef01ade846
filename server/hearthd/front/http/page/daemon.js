// Requests to the daemon: one each second while the page is visible, and none while the tab is hidden.

const EVERY = 1000;
const SLOWEST = 5000;
const TIMEOUT = 10000;
const KEY = "hearth-token";

/** An error response of the daemon: `message`, `fix`, `status`. */
export class Refused extends Error {
  constructor(status, body, retry) {
    super(body?.error ?? `The daemon answers with HTTP status ${status}.`);
    this.status = status;
    this.fix = body?.fix ?? "";
    this.retry = retry;
  }
}

let memory = ""; // used if the browser has no session storage

export const token = {
  get: () => {
    try {
      return sessionStorage.getItem(KEY) ?? memory;
    } catch {
      return memory;
    }
  },
  set: (value) => {
    memory = value;
    try {
      if (value) sessionStorage.setItem(KEY, value);
      else sessionStorage.removeItem(KEY);
    } catch {
      // the token is kept until the page is closed
    }
  },
};

/** Returns a response of the daemon. Throws `Refused`, or TypeError if the daemon does not answer. */
export async function get(path, timeout = TIMEOUT) {
  const headers = token.get() ? { Authorization: `Bearer ${token.get()}` } : {};
  const answer = await fetch(path, { headers, cache: "no-store", signal: AbortSignal.timeout(timeout) });
  if (answer.ok) return answer;
  const body = await answer.json().catch(() => null);
  throw new Refused(answer.status, body, 1000 * Number(answer.headers.get("Retry-After") ?? 0));
}

/** Polls the status document. Calls `found` with each document, `failed` with each error and the number in a row. */
export class Poll {
  constructor(found, failed) {
    this.found = found;
    this.failed = failed;
    this.timer = 0;
    this.failures = 0;
    this.wanted = false;
    this.asking = false;
    document.addEventListener("visibilitychange", () => this.next(0));
    window.addEventListener("online", () => this.next(0));
  }

  start() {
    this.wanted = true;
    this.next(0);
  }

  stop() {
    this.wanted = false;
    clearTimeout(this.timer);
  }

  next(delay) {
    clearTimeout(this.timer);
    if (this.wanted && !this.asking && !document.hidden) this.timer = setTimeout(() => this.ask(), delay);
  }

  async ask() {
    this.asking = true;
    const begin = performance.now();
    let delay = EVERY;
    try {
      const answer = await get("status?max_age=1");
      const body = await answer.json();
      this.failures = 0;
      if (this.wanted) this.found(body);
    } catch (error) {
      this.failures += 1;
      delay = Math.max(Math.min(EVERY * this.failures, SLOWEST), error.retry ?? 0);
      if (this.wanted) this.failed(error, this.failures);
    } finally {
      this.asking = false;
    }
    this.next(Math.max(delay - (performance.now() - begin), EVERY / 4));
  }
}
