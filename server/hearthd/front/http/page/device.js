// The card of one device: state, running kernels, figures with their history, memory by tenant.

import { el, setBadge, setChildren, setText, setTitle, svg } from "./dom.js";
import * as units from "./units.js";

const WINDOW = 300; // seconds of a sparkline
const GAP = 10; // seconds without a sample after which a line is interrupted
const KERNELS = 4; // running kernels that are shown for each device
const COLOURS = 7;
const STATES = {
  serving: ["●", "serving", "good"], starting: ["◌", "starting", "warn"], lost: ["▲", "lost", "bad"],
  fenced: ["■", "fenced", "bad"], stalled: ["▲", "stalled", "warn"],
};

/** A figure with its sparkline. Samples are pairs of a time in seconds and a value. */
class Figure {
  constructor(label, title) {
    this.value = el("dd", { class: "number" });
    this.samples = [];
    this.under = svg("path", { class: "under" });
    this.over = svg("path", { class: "over" });
    const spark = svg("svg", { class: "spark", viewBox: `0 0 ${WINDOW} 26`, preserveAspectRatio: "none", "aria-hidden": "true" },
      this.under, this.over);
    this.node = el("div", { class: "figure", title: `${title}; the line shows the last five minutes` }, el("dt", {}, label),
      this.value, spark);
  }

  show(text, now, value) {
    setText(this.value, text);
    if (now > (this.samples.at(-1)?.[0] ?? -Infinity)) this.samples.push([now, value]);
    while (this.samples[0][0] < now - WINDOW) this.samples.shift();
  }

  /** Inserts the daemon's samples before those that this page has received since. */
  recall(samples) {
    const last = samples.at(-1)?.[0] ?? -Infinity;
    this.samples = [...samples, ...this.samples.filter(([time]) => time > last)];
  }

  get most() {
    return this.samples.reduce((most, [, value]) => Math.max(most, value), 0);
  }

  /** Draws the line; the value `top` has the full height. */
  draw(now, top) {
    const lines = [];
    let before = -Infinity;
    for (const [time, value] of this.samples) {
      if (time - before > GAP) lines.push([]);
      const x = (WINDOW - (now - time)).toFixed(1);
      lines.at(-1).push([x, (25 - 23 * Math.min(1, value / (top || 1))).toFixed(1)]);
      before = time;
    }
    const paths = lines.map((points) => `M${points.map((point) => point.join(" ")).join("L")}`);
    this.over.setAttribute("d", paths.join(""));
    this.under.setAttribute("d", paths.map((path, index) => `${path}L${lines[index].at(-1)[0]} 26L${lines[index][0][0]} 26Z`).join(""));
  }

  forget() {
    this.samples = [];
  }
}

const colours = new Map(); // a tenant keeps its colour while the page is open, on all devices

function colour(tenant) {
  if (!colours.has(tenant)) colours.set(tenant, `k${colours.size % COLOURS}`);
  return colours.get(tenant);
}

/** Returns [name, bytes, class] of each part; at most as many parts as there are colours. */
function largest(tenants) {
  const most = tenants.length > COLOURS ? COLOURS - 1 : tenants.length;
  const parts = tenants.slice(0, most).map(({ tenant, bytes }) => [tenant, bytes, colour(tenant)]);
  const rest = tenants.slice(most);
  if (rest.length) parts.push([`${rest.length} others`, rest.reduce((sum, { bytes }) => sum + bytes, 0), "rest"]);
  return parts;
}

class Memory {
  constructor() {
    this.sum = el("span", { class: "number" });
    this.bar = el("div", { class: "bar", role: "img" });
    this.legend = el("ul", { class: "legend" });
    this.node = el("div", { class: "memory" }, el("div", { class: "line" }, el("span", {}, "Memory"), this.sum), this.bar,
      this.legend);
  }

  show(device) {
    const gauges = device.gauges ?? {};
    const total = device.memory.total_bytes || gauges.memory_total_bytes || 0;
    const parts = largest(device.memory_by_tenant ?? []);
    const mine = parts.reduce((sum, [, size]) => sum + size, 0);
    const used = Math.max(mine, device.memory.used_bytes ?? gauges.memory_reserved_bytes ?? 0);
    const rest = used - mine; // kept for the next allocation, or not visible to the viewer
    if (rest > total / 500) parts.push([mine ? "reserved, other" : "reserved", rest, "pool"]);
    setText(this.sum, total ? `${units.bytes(used)} of ${units.bytes(total)}` : units.bytes(used));
    const shares = parts.map(([name, size, kind]) => `${name}: ${units.bytes(size)}`);
    this.bar.setAttribute("aria-label", shares.join(", ") || "nothing in use");
    this.draw(parts, total || used || 1);
  }

  draw(parts, total) {
    while (this.bar.children.length < parts.length) {
      this.bar.append(el("span"));
      this.legend.append(el("li", {}, el("span", { class: "swatch" }), el("span"), el("b", { class: "number" })));
    }
    while (this.bar.children.length > parts.length) {
      this.bar.lastElementChild.remove();
      this.legend.lastElementChild.remove();
    }
    parts.forEach(([name, size, kind], index) => {
      const piece = this.bar.children[index];
      piece.className = kind;
      piece.style.width = `${(100 * size) / total}%`;
      piece.style.minWidth = "2px";
      const [swatch, label, value] = this.legend.children[index].children;
      swatch.className = `swatch ${kind}`;
      setText(label, name);
      setText(value, units.bytes(size));
    });
  }
}

/** The kernels that run now, with their sessions. */
class Running {
  constructor() {
    this.list = el("ul");
    this.node = el("div", { class: "running" }, el("h4", {}, "Running now"), this.list);
  }

  show(device) {
    const all = device.running ?? [];
    const shown = all.slice(0, KERNELS).map((each) => [each.kernel, who(each), each.seconds < 0.1 ? "< 0.1 s" : units.span(each.seconds)]);
    if (all.length > KERNELS) shown.push(["", `${all.length - KERNELS} more`, ""]);
    if (!shown.length) shown.push(["", "no kernel", ""]);
    while (this.list.children.length < shown.length) {
      this.list.append(el("li", {}, el("code"), el("span", { class: "quiet" }), el("b", { class: "number" })));
    }
    while (this.list.children.length > shown.length) this.list.lastElementChild.remove();
    shown.forEach(([kernel, session, time], index) => {
      const [name, owner, seconds] = this.list.children[index].children;
      setText(name, kernel);
      setTitle(name, kernel);
      setText(owner, session);
      setText(seconds, time);
    });
  }
}

function who({ client, session, tenant, queued }) {
  const parts = [client || session, client ? session : "", tenant, queued ? `${queued} queued` : ""];
  return parts.filter(Boolean).join(" · ");
}

export class DeviceCard {
  constructor() {
    this.name = el("h3");
    this.about = el("p", { class: "quiet" });
    this.badge = el("span", { class: "badge" });
    this.why = el("p", { class: "why" });
    this.busy = new Figure("Busy", "Share of the last ten seconds in which sessions had work on the device");
    this.launches = new Figure("Launches", "Kernels handed to the driver, over the last ten seconds");
    this.received = new Figure("Upload", "Bytes copied to the device, over the last ten seconds");
    this.sent = new Figure("Download", "Bytes copied from the device, over the last ten seconds");
    this.figures = [this.busy, this.launches, this.received, this.sent];
    this.running = new Running();
    this.memory = new Memory();
    this.facts = el("div", { class: "facts quiet number" });
    this.node = el("article", { class: "card" },
      el("header", {}, el("div", {}, this.name, this.about), this.badge), this.why,
      el("dl", { class: "figures" }, ...this.figures.map((each) => each.node)), this.running.node,
      this.memory.node, this.facts);
  }

  show(device, now) {
    const state = STATES[device.state] ?? ["?", device.state, "warn"];
    setBadge(this.badge, state);
    this.node.classList.toggle("trouble", state[2] === "bad");
    setText(this.name, `${device.ordinal} · ${device.name || "device"}`);
    const lost = Object.values(device.restarts ?? {}).reduce((sum, each) => sum + each, 0);
    const about = [device.backend, `generation ${device.generation}`];
    if (device.pid) about.push(`pid ${device.pid}`);
    if (lost) about.push(`${lost} lost`);
    setText(this.about, about.join(" · "));
    setTitle(this.about, Object.entries(device.restarts ?? {}).map(([why, many]) => `${why}: ${many}`).join(", "));
    this.why.hidden = !device.detail;
    this.why.classList.toggle("mild", state[2] !== "bad");
    setText(this.why, device.detail ?? "");
    this.rates(device.throughput ?? {}, now);
    this.running.show(device);
    this.memory.show(device);
    const facts = this.said(device);
    while (this.facts.children.length < facts.length) this.facts.append(el("span"));
    while (this.facts.children.length > facts.length) this.facts.lastElementChild.remove();
    facts.forEach((text, index) => setText(this.facts.children[index], text));
  }

  rates(rates, now) {
    const busy = rates.busy_ratio ?? null;
    this.busy.show(busy === null ? "–" : units.percent(busy), now, busy ?? 0);
    // Null for a viewer that is no observer.
    const show = (figure, text, rate) => figure.show(rate == null ? "–" : text(rate), now, rate ?? 0);
    show(this.launches, units.perSecond, rates.launches_per_second);
    show(this.received, units.bytesPerSecond, rates.received_bytes_per_second);
    show(this.sent, units.bytesPerSecond, rates.sent_bytes_per_second);
  }

  recall(history, now) {
    const times = history.age_seconds.map((age) => now - age);
    const samples = (values) => times.map((time, index) => [time, values[index] ?? 0]);
    this.busy.recall(samples(history.busy_ratio));
    this.launches.recall(samples(history.launches_per_second));
    this.received.recall(samples(history.received_bytes_per_second));
    this.sent.recall(samples(history.sent_bytes_per_second));
  }

  draw(now, launches, bytes) {
    this.busy.draw(now, 1);
    this.launches.draw(now, launches);
    this.received.draw(now, bytes);
    this.sent.draw(now, bytes);
  }

  said(device) {
    const queue = device.queue ?? { commands: 0, bytes: 0 };
    const facts = [`queue ${units.count(queue.commands)}${queue.bytes ? `, ${units.bytes(queue.bytes)}` : ""}`];
    const waiting = device.gauges?.commands_waiting;
    if (waiting) facts.push(`${units.count(waiting)} commands waiting`);
    const gpu = device.gpu ?? {};
    if (gpu.temperature != null) facts.push(`${Math.round(gpu.temperature)} °C`);
    if (gpu.power != null) facts.push(`${Math.round(gpu.power)} W`);
    if (gpu.sm_clock != null) facts.push(`${(gpu.sm_clock / 1e9).toFixed(2)} GHz`);
    if (gpu.utilization != null) facts.push(`GPU ${units.percent(gpu.utilization)}`);
    return facts;
  }

  forget() {
    this.figures.forEach((figure) => figure.forget());
  }
}

/** All cards, in the order of the devices. */
export class Devices {
  constructor(place) {
    this.place = place;
    this.cards = new Map();
  }

  show(devices, now) {
    const nodes = devices.map((device) => {
      const card = this.card(device.ordinal);
      card.show(device, now);
      return card.node;
    });
    setChildren(this.place, nodes);
    this.draw(now);
  }

  /** Inserts the daemon's history. */
  recall(history, now) {
    for (const device of history.devices) this.card(device.ordinal).recall(device, now);
    this.draw(now);
  }

  card(ordinal) {
    if (!this.cards.has(ordinal)) this.cards.set(ordinal, new DeviceCard());
    return this.cards.get(ordinal);
  }

  /** Equal rates have equal heights: all devices share a scale for launches, and one for both directions of copies. */
  draw(now) {
    const cards = [...this.cards.values()];
    const launches = Math.max(...cards.map((card) => card.launches.most));
    const bytes = Math.max(...cards.map((card) => Math.max(card.received.most, card.sent.most)));
    cards.forEach((card) => card.draw(now, launches, bytes));
  }

  forget() {
    this.cards.forEach((card) => card.forget());
  }
}
