// The report of a replay: one file, which holds this and its data. What is chosen in it stands in the address.

import { around, el, fill, foreign, Keyed, searchBySlash } from "./dom.js";
import { line, stacked, timesSince } from "./charts.js";
import { completionTimes, ending, figures, heads, legend, life, policy, row } from "./comparison.js";
import { Lanes, LEFT, RIGHT } from "./lanes.js";
import { between, Replay } from "./runs.js";
import { Span } from "./span.js";
import { counted, lasting, number } from "./words.js";

const NARROWEST = 220; // pixels of a policy's column
const AT_ONCE = 100; // rows of the table
const SETTLED = 250; // ms after which the address says what was chosen
const JUMP = 10; // jobs, by Page Up and Page Down

/** @typedef {import("./runs.js").Job} Job */

const replay = new Replay(JSON.parse(document.getElementById("replay")?.textContent ?? ""));
const span = new Span(replay.end, () => later(showTimes));
const lanes = new Lanes(replay, span, { choose });
const chosen = { find: "", sort: "submitted", rows: "all", job: /** @type {Job | null} */ (null) };
/** @type {Job[]} */
let rows = [];
let most = AT_ONCE;

const search = el("input", {
  type: "search", placeholder: "Find a job, name or user …  ( / )", "aria-label": "Find",
  input: () => {
    chosen.find = search.value;
    anew();
  },
});
const sorting = el(
  "select",
  {
    "aria-label": "Order",
    change: () => {
      chosen.sort = sorting.value;
      anew();
    },
  },
  orders().map(([value, words]) => el("option", { value }, words)),
);
const density = el("button", { click: () => ((chosen.rows = chosen.rows === "named" ? "all" : "named"), list()) });
const zoomed = el("span", { class: "zoomed", role: "status" });
const zooms = el(
  "div",
  { class: "zooms", role: "group", "aria-label": "Times shown" },
  el("button", { "aria-label": "Earlier", title: "Earlier ( ← )", click: () => span.move(-0.25) }, "‹"),
  el("button", { "aria-label": "Zoom in", title: "Zoom in ( + )", click: () => span.zoom(0.5) }, "+"),
  el("button", { "aria-label": "Zoom out", title: "Zoom out ( - )", click: () => span.zoom(2) }, "−"),
  el("button", { "aria-label": "Later", title: "Later ( → )", click: () => span.move(0.25) }, "›"),
  el("button", { title: "All times ( 0 )", click: () => span.all() }, "All"),
  zoomed,
);
const count = el("p", { class: "note", role: "status" });
const curves = replay.runs.map((run) => ({ run, busy: el("div", { class: "curve" }), waiting: el("div", { class: "curve" }) }));
const above = el(
  "div",
  { class: "above" },
  el(
    "div",
    { class: "columns" },
    el("div", { class: "names" }),
    curves.map(({ run, busy, waiting }, which) =>
      el("section", {}, el("h3", { title: run.policy }, policy(run, which)), el("p", { class: "soft" }, "GPUs held"), busy, el("p", { class: "soft" }, "Jobs that wait"), waiting),
    ),
  ),
);
const side = el(
  "div",
  { class: "side", tabindex: "0", role: "group", "aria-label": "Jobs over time under each policy; the table below says the same in words", keydown: keys },
  above,
  lanes.root,
);
const said = el("p", { class: "said", "aria-live": "polite" });
const panel = el("div", {});
const completions = el("div", {});
const body = el("tbody");
/** @type {Keyed<{ at: number, is: boolean }>} */
const table = new Keyed(body, (_, { at, is }) =>
  row(replay, replay.jobs[at], { chosen: is, choose: () => choose(replay.jobs[at], { far: true }) }),
);
const more = el("button", { click: () => ((most += AT_ONCE), list()) }, "Show more");

document.body.append(
  el("button", { class: "skip", click: () => side.focus() }, "Skip to the jobs"),
  el(
    "main",
    {},
    el("section", { class: "head" }, el("h1", {}, "Replay of ", foreign(replay.facts.trace)), el("p", { class: "about" }, about())),
    figures(replay),
    el(
      "section",
      { class: "card" },
      el("h2", {}, "Completion times"),
      el("p", { class: "about" }, "Percentage of the jobs that had ended, done or by their time limit, within a time of their submission. Further left is better."),
      legend(replay),
      completions,
    ),
    el(
      "section",
      { class: "card" },
      el("h2", {}, "Side by side"),
      el("div", { class: "tools" }, search, el("label", {}, "Order ", sorting), density, zooms),
      el("ul", { class: "legend" }, keysOfShades()),
      side,
      count,
      el(
        "p",
        { class: "note" },
        "All columns show the same times: drag over some to see them alone, or hold Ctrl and turn the wheel, or press + and −; ",
        "arrows move and choose, 0 shows all. Beside a job: how long it took under ",
        foreign(replay.runs[0].policy),
        replay.runs.length > 1 ? ", and how many times as long under the others." : ".",
      ),
      said,
    ),
    panel,
    el(
      "section",
      { class: "card" },
      el("h2", {}, "Jobs, from submission to end"),
      el("div", { class: "wide" }, el("table", { class: "jobs" }, el("thead", {}, heads(replay)), body)),
      more,
    ),
  ),
);

function about() {
  const { jobs_in_all: jobs, gpus, cluster, coarse } = replay.facts;
  const left = jobs - replay.jobs.length;
  return [
    `${counted(jobs, "job")} on ${counted(gpus, "GPU")} (`, foreign(cluster), `); simulated time ${lasting(replay.end)}.`,
    left > 0 && ` The first ${number(replay.jobs.length)} jobs are drawn; figures and curves count all.`,
    coarse > 0 && ` Of each job its ${number(coarse)} longest stretches are drawn.`,
  ];
}

function orders() {
  const against = replay.runs.slice(1).flatMap((run, index) => [
    [`gained-${index + 1}`, `Gained most under ${run.policy}`],
    [`lost-${index + 1}`, `Lost most under ${run.policy}`],
  ]);
  return [["submitted", "By submission"], ...against, ["took", "Longest first"], ["changes", "Most changes first"], ["name", "By name"]];
}

function keysOfShades() {
  const largest = replay.mostGpus;
  const words = lanes.shades.map(({ least, most: to }) => (least === Math.min(to, largest) ? String(least) : `${least}–${Math.min(to, largest)}`));
  const cut = replay.runs.some((run) => run.jobs.some((lived) => lived.cut));
  return [
    el("li", {}, el("i", { class: "key waits low" }), "waiting"),
    cut && el("li", {}, el("i", { class: "key limit" }), "ended by its time limit"),
    el("li", {}, "GPUs:"),
    words.map((one, shade) => el("li", {}, el("i", { class: `key g${shade}` }), one)),
  ];
}

/** @type {Set<() => void>} What is called often is done once for all, before the next picture. */
const due = new Set();
/** @param {() => void} what */
function later(what) {
  if (!due.size)
    requestAnimationFrame(() => {
      const all = [...due];
      due.clear();
      for (const one of all) one();
    });
  due.add(what);
}

/** Which jobs are listed, and in which order. */
function list() {
  rows = replay.found(chosen.find, chosen.sort, span);
  fill(density, chosen.rows === "named" ? "All rows at once" : "Rows with names");
  const of = rows.length === replay.jobs.length ? "" : ` of ${number(replay.jobs.length)}`;
  const when = of && !chosen.find.trim() ? " in these times" : "";
  const among = replay.jobs.length < replay.facts.jobs_in_all ? ` among the ${number(replay.jobs.length)} drawn` : "";
  fill(count, rows.length ? `${number(rows.length)}${of} ${replay.jobs.length === 1 ? "job" : "jobs"}${when}.` : `No such job${among}${when}.`);
  showJobs();
}

/** The same from the top: they are others now. */
function anew() {
  most = AT_ONCE;
  lanes.root.scrollTop = 0;
  list();
}

function showJobs() {
  lanes.show(rows, { named: chosen.rows === "named", chosen: chosen.job });
  table.show(rows.slice(0, most).map((job) => [String(job.at), { at: job.at, is: job === chosen.job }]));
  more.hidden = rows.length <= most;
  remember();
}

/** @param {Job | null} job @param {{ far?: boolean }} how */
function choose(job, { far = false } = {}) {
  chosen.job = job;
  showLife();
  showJobs();
  if (job) lanes.reach(job);
  if (job && far) panel.scrollIntoView({ block: "nearest" });
}

function showLife() {
  const { job } = chosen;
  const close = () => {
    choose(null);
    side.focus({ preventScroll: true });
  };
  fill(panel, job && life(replay, job, panel.clientWidth - 38, { zoom: (from, to) => span.set(from, to), close }));
  fill(said, job && [foreign(job.name), ": ", replay.runs.map((run, which) => `${which ? ", " : ""}${run.policy} ${ending(run.jobs[job.at])}`)]);
}

/** Drawings over the times that are shown. */
function showTimes() {
  const { from, to } = span;
  const width = curves[0].busy.clientWidth;
  if (width) {
    const frame = { from, to, width, left: LEFT, right: RIGHT, marks: timesSince };
    const waits = curves.map(({ run }) => between(run.waiting, from, to, width));
    const longest = Math.max(4, ...waits.flat().map((point) => point[1]));
    curves.forEach(({ run, busy, waiting }, which) => {
      const held = stacked(between(run.busy, from, to, width), ["elastic"], { ...frame, most: replay.facts.gpus, height: 120, label: `GPUs held over time under ${run.policy}` });
      fill(busy, held.root);
      fill(waiting, line(waits[which], "wait", { ...frame, most: longest, height: 100, label: `Jobs that wait, over time, under ${run.policy}` }).root);
    });
  }
  fill(zoomed, span.whole ? "" : `${lasting(from)} to ${lasting(to)}`);
  list();
}

/** Each column as wide as there is room for, those of the curves and of the jobs alike. */
function lay() {
  const names = side.clientWidth < 700 ? 76 : 190;
  const bar = 16; // of the rows' scrolling
  const column = Math.max(NARROWEST, Math.floor((side.clientWidth - names - bar) / replay.runs.length));
  side.style.setProperty("--names", String(names));
  side.style.setProperty("--column", String(column));
  side.style.setProperty("--policies", String(replay.runs.length));
  fill(completions, completionTimes(replay, completions.clientWidth));
  showTimes();
  if (chosen.job) showLife();
}

for (const { busy, waiting } of curves)
  for (const node of [busy, waiting])
    span.attach(node, (x) => span.from + ((x - LEFT) / (node.clientWidth - LEFT - RIGHT)) * (span.to - span.from));
above.addEventListener("scroll", () => (lanes.root.scrollLeft = above.scrollLeft));
lanes.root.addEventListener("scroll", () => (above.scrollLeft = lanes.root.scrollLeft));
// Paper takes what the screen had, at another scale.
new ResizeObserver(() => matchMedia("print").matches || later(lay)).observe(side);

/** @param {KeyboardEvent} event */
function keys(event) {
  if (around(event, "input, select, button") || event.ctrlKey || event.metaKey || event.altKey) return;
  /** @param {number} by */
  const step = (by) => {
    const at = chosen.job ? rows.indexOf(chosen.job) : -1;
    const next = rows[Math.min(Math.max(at < 0 && Number.isFinite(by) ? 0 : at + by, 0), rows.length - 1)];
    if (next) choose(next);
  };
  /** @type {Record<string, () => void>} */
  const acts = {
    "+": () => span.zoom(0.5), "=": () => span.zoom(0.5), "-": () => span.zoom(2), 0: () => span.all(),
    ArrowLeft: () => span.move(-0.25), ArrowRight: () => span.move(0.25),
    ArrowDown: () => step(1), ArrowUp: () => step(-1), PageDown: () => step(JUMP), PageUp: () => step(-JUMP),
    Home: () => step(-Infinity), End: () => step(Infinity), Escape: () => choose(null),
  };
  if (!Object.hasOwn(acts, event.key)) return;
  event.preventDefault();
  acts[event.key]();
}

searchBySlash();

/** What was chosen, as the address has it. */
function words() {
  const found = new URLSearchParams();
  if (!span.whole) {
    found.set("from", span.from.toFixed(0));
    found.set("to", span.to.toFixed(0));
  }
  if (chosen.find) found.set("find", chosen.find);
  if (chosen.sort !== "submitted") found.set("sort", chosen.sort);
  if (chosen.rows !== "all") found.set("rows", chosen.rows);
  if (chosen.job) found.set("job", String(chosen.job.number));
  return found.toString();
}

let settling = 0;
function remember() {
  clearTimeout(settling);
  settling = setTimeout(() => {
    if (location.hash.slice(1) !== words()) history.replaceState(null, "", `#${words()}`);
  }, SETTLED);
}

/** Show what an address says, in so far as it is sensible. */
function restore() {
  const asked = new URLSearchParams(location.hash.slice(1));
  /** @param {string} name @param {number} other */
  const number_ = (name, other) => (asked.has(name) && Number.isFinite(Number(asked.get(name))) ? Number(asked.get(name)) : other);
  chosen.find = search.value = asked.get("find") ?? "";
  sorting.value = asked.get("sort") ?? "submitted";
  if (sorting.selectedIndex < 0) sorting.value = "submitted";
  chosen.sort = sorting.value;
  chosen.rows = asked.get("rows") === "named" ? "named" : "all";
  chosen.job = replay.jobs[number_("job", 0) - 1] ?? null;
  span.set(number_("from", 0), number_("to", replay.end));
  lanes.root.scrollTop = 0;
  list();
  showLife();
  if (chosen.job) lanes.reach(chosen.job);
}

addEventListener("hashchange", restore);
lay();
restore();
