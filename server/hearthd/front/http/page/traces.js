// A trace as a file, or handed to Perfetto. Perfetto is the only thing on this page that is not the daemon's: it is
// opened by a click only, in a separate tab, and is given the trace by the browser; it never learns of the daemon.

import { get } from "./daemon.js";
import { el } from "./dom.js";

const PERFETTO = "https://ui.perfetto.dev";
const LONG = 120000; // a long trace takes a while to convert
const TIMEOUT = 30000;

const fileOf = (trace) => `hearth-device${trace.device}-${trace.id.slice(0, 8)}.json`;
const load = async (trace) => (await get(`traces/${encodeURIComponent(trace.id)}.json`, LONG)).blob();

export async function download(trace) {
  const url = URL.createObjectURL(await load(trace));
  el("a", { href: url, download: fileOf(trace) }).click();
  setTimeout(() => URL.revokeObjectURL(url), TIMEOUT);
}

/** To be called in a click: a browser opens no window otherwise. */
export async function openInPerfetto(trace) {
  const there = window.open(PERFETTO, "_blank");
  if (!there) throw new Error("The browser opened no window. Allow it, or download the trace and open it there.");
  const [buffer] = await Promise.all([load(trace).then((blob) => blob.arrayBuffer()), answers(there)]);
  const title = `Hearth: device ${trace.device}, session ${trace.session}`;
  there.postMessage({ perfetto: { buffer, title, fileName: fileOf(trace) } }, PERFETTO);
}

/** Perfetto says PONG to PING when it has loaded. */
function answers(there) {
  return new Promise((resolve, reject) => {
    const ping = setInterval(() => there.postMessage("PING", PERFETTO), 100);
    const end = () => {
      clearInterval(ping);
      clearTimeout(late);
      window.removeEventListener("message", hear);
    };
    const hear = (event) => {
      if (event.origin !== PERFETTO || event.source !== there || event.data !== "PONG") return;
      end();
      resolve();
    };
    const late = setTimeout(() => {
      end();
      reject(new Error("ui.perfetto.dev did not answer. Download the trace and open it there later."));
    }, TIMEOUT);
    window.addEventListener("message", hear);
  });
}

/** The two buttons of a trace; `say` tells the user how it went. */
export function actions(trace, say) {
  const button = (label, what) => {
    const node = el("button", {
      type: "button",
      "aria-label": `${label}: trace of device ${trace.device}, session ${trace.session}`,
      onclick: async () => {
        node.disabled = true;
        say("");
        try {
          await what(trace);
        } catch (error) {
          say(`${error.message} ${error.fix ?? ""}`.trim());
        } finally {
          node.disabled = false;
        }
      },
    }, label);
    return node;
  };
  return [button("Download", download), button("Open in Perfetto", openInPerfetto)];
}
