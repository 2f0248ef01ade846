// The tables of the status document, with their columns.

import { el } from "./dom.js";
import { Table } from "./table.js";
import { actions } from "./traces.js";
import * as units from "./units.js";

export function sessions(place) {
  return new Table(place, [
    { label: "Client", text: client, value: (s) => s.client, title: (s) => `hearth ${s.client_version}` },
    { label: "Session", text: (s) => s.id, value: (s) => s.id },
    { label: "Tenant", text: (s) => s.tenant, value: (s) => s.tenant },
    { label: "Devices", text: (s) => (s.devices.length ? s.devices.join(", ") : "–"), value: (s) => s.devices.join(",") },
    { label: "State", text: state, value: state },
    { label: "Opened", right: true, text: (s) => units.ago(units.since(s.opened_unix)), value: (s) => -s.opened_unix,
      title: (s) => units.absolute(s.opened_unix) },
    { label: "Memory", right: true, text: (s) => units.bytes(s.memory_bytes ?? 0), value: (s) => s.memory_bytes ?? 0 },
    { label: "Share", right: true, text: (s) => units.percent(s.device_share ?? 0), value: (s) => s.device_share ?? 0,
      title: () => "Device time over the last ten seconds; more than 100 % with several devices" },
    { label: "Device time", right: true, text: (s) => units.used(s.device_seconds), value: (s) => s.device_seconds },
  ], (s) => s.id, ["No sessions. A client opens one with ", el("code", {}, "hearth.connect()"), "."], { column: 8, down: true });
}

/** The name, followed by the process unless the name begins with it, to distinguish workers of the same name. */
function client({ client: name, process }) {
  if (!process || name.startsWith(process)) return name || "–";
  return `${name || "–"} (${process})`;
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

export function published(place) {
  return new Table(place, [
    { label: "Name", text: (p) => p.name, value: (p) => p.name },
    { label: "Device", text: (p) => String(p.device), value: (p) => p.device },
    { label: "Tenant", text: (p) => p.tenant, value: (p) => p.tenant },
    { label: "Session", text: (p) => p.session || "–", value: (p) => p.session },
    { label: "Open to", text: (p) => (p.grants == null ? "–" : p.grants.includes("*") ? "all tenants" : p.grants.join(", ") || "–") },
    { label: "Size", right: true, text: (p) => units.bytes(p.bytes), value: (p) => p.bytes },
    { label: "Attached by", right: true, text: (p) => (p.attached == null ? "–" : sessionCount(p.attached)), value: (p) => p.attached ?? 0 },
  ], (p) => `${p.tenant}/${p.device}/${p.name}`, ["None. A client publishes one with ", el("code", {}, "array.publish(name)"), "."]);
}

function sessionCount(number) {
  return `${units.count(number)} session${number === 1 ? "" : "s"}`;
}

export function faults(place) {
  return new Table(place, [
    { label: "When", text: (f) => units.ago(units.since(f.time_unix)), title: (f) => units.absolute(f.time_unix) },
    { label: "Device", text: (f) => `${f.device}, generation ${f.generation}` },
    { label: "Reason", text: (f) => f.reason },
    { label: "What happened", text: (f) => f.detail },
    { label: "Kernels in flight", text: (f) => (f.kernels.length ? f.kernels.join(", ") : "–") },
    { label: "Session", text: (f) => (f.sessions ?? []).map((s) => s.id).join(", ") || "–" },
    { label: "Tenant", text: (f) => faultTenants(f) || "–" },
  ], (f) => `${f.device}/${f.generation}/${f.time_unix}`, ["No device process has been lost since the daemon started."]);
}

function faultTenants(fault) {
  const tenants = new Set((fault.sessions ?? []).map((session) => session.tenant).filter(Boolean));
  return [...tenants].join(", ") || fault.tenant || "";
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
