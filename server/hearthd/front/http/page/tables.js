// What the tables show of the status document.

import { el } from "./dom.js";
import { Table } from "./table.js";
import { actions } from "./traces.js";
import * as units from "./units.js";

export function sessions(place) {
  return new Table(place, [
    { label: "Client", text: (s) => s.client || "–", value: (s) => s.client, title: (s) => `hearth ${s.client_version}` },
    { label: "Session", text: (s) => s.id, value: (s) => s.id },
    { label: "Tenant", text: (s) => s.tenant, value: (s) => s.tenant },
    { label: "Devices", text: (s) => (s.devices.length ? s.devices.join(", ") : "–"), value: (s) => s.devices.join(",") },
    { label: "State", text: state, value: state },
    { label: "Opened", right: true, text: (s) => units.ago(units.since(s.opened_unix)), value: (s) => -s.opened_unix,
      title: (s) => units.absolute(s.opened_unix) },
    { label: "Device time", right: true, text: (s) => units.used(s.device_seconds), value: (s) => s.device_seconds },
  ], (s) => s.id, ["No sessions. A client opens one with ", el("code", {}, "hearth.connect()"), "."], { column: 6, down: true });
}

function state(session) {
  const own = session.dedicated ? ", own processes" : "";
  return session.connected ? `connected${own}` : `idle, lease ${units.span(Math.ceil(session.lease_left_seconds))}${own}`;
}

export function tenants(place) {
  return new Table(place, [
    { label: "Tenant", text: (t) => t.name, value: (t) => t.name },
    { label: "Sessions", right: true, text: (t) => units.count(t.sessions), value: (t) => t.sessions },
    { label: "Device time", right: true, text: (t) => units.used(t.device_seconds), value: (t) => t.device_seconds },
    { label: "Allowed", right: true, text: (t) => (t.device_seconds_allowed ? units.span(t.device_seconds_allowed) : "–") },
    { label: "Queued", right: true, text: (t) => units.count(t.queued_commands), value: (t) => t.queued_commands },
    { label: "Queued bytes", right: true, text: (t) => units.bytes(t.queued_bytes), value: (t) => t.queued_bytes },
  ], (t) => t.name, ["No tenant has opened a session yet."]);
}

export function faults(place) {
  return new Table(place, [
    { label: "When", text: (f) => units.ago(units.since(f.time_unix)), title: (f) => units.absolute(f.time_unix) },
    { label: "Device", text: (f) => `${f.device}, generation ${f.generation}` },
    { label: "Reason", text: (f) => f.reason },
    { label: "What happened", text: (f) => f.detail },
    { label: "Kernels in flight", text: (f) => (f.kernels.length ? f.kernels.join(", ") : "–") },
  ], (f) => `${f.device}/${f.generation}/${f.time_unix}`, ["No device process has been lost since the daemon started."]);
}

export function traces(place, say) {
  return new Table(place, [
    { label: "Ended", text: (t) => units.ago(units.since(t.started_unix + t.seconds)),
      title: (t) => units.absolute(t.started_unix + t.seconds) },
    { label: "Device", text: (t) => String(t.device) },
    { label: "Session", text: (t) => t.session },
    { label: "Tenant", text: (t) => t.tenant },
    { label: "Commands", right: true, text: (t) => units.count(t.events) },
    { label: "Length", right: true, text: (t) => units.span(t.seconds) },
    { label: "", text: () => "", build: (t) => actions(t, say) },
  ], (t) => t.id, ["None. A client makes one: ", el("code", {}, "with gpu.trace(): ...")]);
}
