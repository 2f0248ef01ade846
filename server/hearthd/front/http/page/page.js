// The page: shows the daemon's documents, and asks for a token if the daemon requires one.

import { Poll, Refused, get, token } from "./daemon.js";
import { Devices } from "./device.js";
import { byId, setBadge, setText } from "./dom.js";
import * as tables from "./tables.js";
import * as units from "./units.js";

const guarded = document.documentElement.hasAttribute("data-guarded");
const devices = new Devices(byId("devices"));
const sessions = tables.sessions(byId("sessions"));
const tenants = tables.tenants(byId("tenants"));
const published = tables.published(byId("published"));
const faults = tables.faults(byId("faults"));
const traces = tables.traces(byId("traces"), (text) => setText(byId("trace-note"), text));
const poll = new Poll(found, failed);

const AWAY = 5000; // milliseconds without a document after which the history is requested again
const STATES = { ready: ["●", "ready", "good"], draining: ["◑", "draining", "warn"], not: ["▲", "not ready", "bad"] };

let last = null; // the document that is shown
let when = 0; // the time at which it arrived
let paused = false;
let recalled = 0; // the time at which the history was requested

// ---- documents ----

function found(status) {
  if (last && last.started_unix !== status.started_unix) {
    devices.forget();
    recalled = 0;
    news("The daemon was restarted.");
  }
  announce(status);
  if (Date.now() - Math.max(when, recalled) > AWAY) recall();
  last = status;
  when = Date.now();
  units.setNow(status.started_unix + status.uptime_seconds);
  for (const id of ["ask", "banner"]) byId(id).hidden = true;
  byId("foot").hidden = false;
  byId("data").hidden = false;
  byId("data").classList.remove("stale");
  byId("pause").hidden = false;
  byId("forget").hidden = !token.get();
  show();
}

/** Requests the daemon's history: when the page opens, and after a time without documents, e.g. in a hidden tab. */
async function recall() {
  recalled = Date.now();
  try {
    const history = await (await get("history")).json();
    if (last) devices.recall(history, now());
  } catch {
    // the lines then begin at the time when the page was opened
  }
}

const now = () => performance.now() / 1000;

function show() {
  setText(byId("node"), last.node);
  setText(byId("about"), `hearthd ${last.version} · up ${units.span(last.uptime_seconds)}`);
  const state = last.draining ? STATES.draining : last.ready ? STATES.ready : STATES.not;
  setBadge(byId("ready"), state);
  byId("ready").hidden = false;
  document.title = `${state === STATES.ready ? "" : `${state[1]}: `}${last.node} · Hearth`;
  devices.show(last.devices, now());
  sessions.show(matching(last.sessions));
  tenants.show(last.tenants);
  published.show(last.published ?? []);
  faults.show(last.faults ?? []);
  traces.show(last.traces ?? []);
  tick();
}

function matching(all) {
  const words = byId("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  const has = (s) => `${s.client} ${s.process ?? ""} ${s.id} ${s.tenant}`.toLowerCase();
  return words.length ? all.filter((session) => words.every((word) => has(session).includes(word))) : all;
}

/** Announces important changes through a screen reader. */
function announce(status) {
  if (!last) return;
  for (const device of status.devices) {
    const before = last.devices.find((each) => each.ordinal === device.ordinal);
    if (before && before.state !== device.state) news(`Device ${device.ordinal} is ${device.state}.`);
  }
  const [fault] = status.faults ?? [];
  if (fault && fault.time_unix > (last.faults?.[0]?.time_unix ?? 0)) news(`Device ${fault.device} was lost: ${fault.detail}.`);
  if (!last.draining && status.draining) news("The daemon is draining.");
}

function news(text) {
  setText(byId("news"), text);
}

// ---- errors ----

function failed(error, times) {
  if (error instanceof Refused && error.status === 401) {
    refused(`${error.message} ${error.fix}`);
    return;
  }
  if (times < 2 && last) return; // a single error is not shown
  const since = when ? ` The data is from ${new Date(when).toLocaleTimeString()}.` : "";
  const what = error instanceof Refused ? `${error.message} ${error.fix}` : "The daemon does not answer.";
  const banner = byId("banner");
  setText(banner, `${what.trim()}${since} Trying again.`);
  banner.hidden = false;
  byId("data").classList.add("stale");
  setText(byId("live"), "no answer");
  byId("ready").hidden = true;
  document.title = "no answer · Hearth";
}

function refused(why) {
  token.set("");
  ask(why);
}

function ask(why = "") {
  poll.stop();
  last = null;
  for (const id of ["data", "ready", "pause", "forget", "banner", "foot"]) byId(id).hidden = true;
  setText(byId("node"), "Hearth");
  for (const id of ["about", "live", "updated"]) setText(byId(id), "");
  document.title = "Hearth";
  const note = byId("ask-why");
  if (why) setText(note, why);
  note.classList.toggle("wrong", Boolean(why));
  byId("ask").hidden = false;
  byId("token").setAttribute("aria-invalid", String(Boolean(why)));
  byId("token").focus();
}

// ---- input ----

byId("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  const value = byId("token").value.trim().replace(/^bearer\s+/i, "");
  byId("token").value = "";
  if (!/^[\x21-\x7e]+$/.test(value)) {
    ask("That is not a token: tokens have letters, digits and punctuation only, and no spaces.");
    return;
  }
  token.set(value);
  poll.start();
});

byId("forget").addEventListener("click", () => {
  token.set("");
  setText(byId("ask-why"), "Enter the token that the daemon's operator gave you.");
  ask();
});

byId("pause").addEventListener("click", () => {
  paused = !paused;
  byId("pause").setAttribute("aria-pressed", String(paused));
  setText(byId("pause"), paused ? "Resume" : "Pause");
  if (paused) poll.stop();
  else poll.start();
  tick();
});

byId("filter").addEventListener("input", () => last && sessions.show(matching(last.sessions)));

function tick() {
  if (!last) return;
  const age = (Date.now() - when) / 1000;
  setText(byId("updated"), `Updated ${units.ago(age)}`);
  if (byId("banner").hidden) setText(byId("live"), paused ? "paused" : "live");
}
setInterval(() => document.hidden || tick(), 1000);

byId("links").hidden = guarded; // a link cannot carry a token
if (guarded && !token.get()) ask();
else poll.start();
