// One device's card: state, figures with their last minutes, memory by tenant.

import { el, setBadge, setChildren, setText, setTitle, svg } from "./dom.js";
import * as units from "./units.js";

const KEPT = 120; // samples of a sparkline
const COLOURS = 7;
const STATES = {
  serving: ["●", "serving", "good"], starting: ["◌", "starting", "warn"], lost: ["▲", "lost", "bad"],
  fenced: ["■", "fenced", "bad"], stalled: ["▲", "stalled", "warn"],
};

class Figure {
  constructor(label, title) {
    this.value = el("dd", { class: "number" });
    this.history = [];
    this.under = svg("path", { class: "under" });
    this.over = svg("path", { class: "over" });
    const spark = svg("svg", { class: "spark", viewBox: `0 0 ${KEPT - 1} 26`, preserveAspectRatio: "none", "aria-hidden": "true" },
      this.under, this.over);
    this.node = el("div", { class: "figure", title }, el("dt", {}, label), this.value, spark);
  }

  show(text, value, top) {
    setText(this.value, text);
    this.history.push(value);
    if (this.history.length > KEPT) this.history.shift();
    const most = top ?? Math.max(...this.history, 1e-9);
    const from = KEPT - this.history.length;
    const points = this.history.map((each, index) => `${from + index} ${(25 - 23 * Math.min(1, each / most)).toFixed(1)}`);
    const line = `M${points.join("L")}`;
    this.over.setAttribute("d", line);
    this.under.setAttribute("d", `${line}L${KEPT - 1} 26L${from} 26Z`);
  }

  forget() {
    this.history.length = 0;
  }
}

const colours = new Map(); // a tenant keeps its colour while the page is open, on all devices

function colour(tenant) {
  if (!colours.has(tenant)) colours.set(tenant, `k${colours.size % COLOURS}`);
  return colours.get(tenant);
}

/** [name, bytes, class] of each part; there are no more than there are colours. */
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
    const rest = used - mine; // kept for the next allocation, or not the viewer's to see
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
    this.memory = new Memory();
    this.facts = el("div", { class: "facts quiet number" });
    this.node = el("article", { class: "card" },
      el("header", {}, el("div", {}, this.name, this.about), this.badge), this.why,
      el("dl", { class: "figures" }, ...this.figures.map((each) => each.node)), this.memory.node, this.facts);
  }

  show(device) {
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
    this.rates(device.throughput ?? {});
    this.memory.show(device);
    const facts = this.said(device);
    while (this.facts.children.length < facts.length) this.facts.append(el("span"));
    while (this.facts.children.length > facts.length) this.facts.lastElementChild.remove();
    facts.forEach((text, index) => setText(this.facts.children[index], text));
  }

  rates(rates) {
    const busy = rates.busy_ratio ?? null;
    this.busy.show(busy === null ? "–" : units.percent(busy), busy ?? 0, 1);
    // Null: totals of a device are for observers.
    const show = (figure, text, rate) => figure.show(rate == null ? "–" : text(rate), rate ?? 0);
    show(this.launches, units.perSecond, rates.launches_per_second);
    show(this.received, units.bytesPerSecond, rates.received_bytes_per_second);
    show(this.sent, units.bytesPerSecond, rates.sent_bytes_per_second);
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

  show(devices) {
    const nodes = devices.map((device) => {
      if (!this.cards.has(device.ordinal)) this.cards.set(device.ordinal, new DeviceCard());
      const card = this.cards.get(device.ordinal);
      card.show(device);
      return card.node;
    });
    setChildren(this.place, nodes);
  }

  forget() {
    this.cards.forEach((card) => card.forget());
  }
}
