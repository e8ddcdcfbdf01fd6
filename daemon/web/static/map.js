// Every GPU of the cluster, by switch and node, coloured by the job that has it or by its load.

import { remember } from "./address.js";
import { around, el, fill, foreign, Keyed, tabs } from "./dom.js";
import { jobLink } from "./queue.js";
import { counted, number } from "./words.js";

export const title = "Map";
/** @type {Record<string, string>} */
const COLOURS = { job: "By job", load: "By utilisation" };
const HUES = 9; // colours for jobs; then they repeat
const DENSE = 200; // nodes; then they are drawn without their names
const ALL = new Intl.Collator("en", { numeric: true });

/** @typedef {[kind: string, job: string | null]} Cell */
/** @typedef {{ name: string, cells: Cell[], note: string, faint: boolean, held: number, gpus: number }} Drawn */
/** @typedef {{ nodes: Drawn[], held: number, gpus: number }} Group */

/** @type {import("./main.js").Open} */
export function open(root, store, { rest, query }) {
  const colour = Object.hasOwn(COLOURS, rest[0]) ? rest[0] : "job";
  let find = query.get("find") ?? "";
  let chosen = query.get("node");
  const search = el("input", {
    type: "search", placeholder: "Find a job, user or node …  ( / )", "aria-label": "Find", value: find,
    input: () => {
      find = search.value.trim();
      remember(`map/${colour}`, { find, node: chosen });
      update();
    },
  });
  const switches = el("div", { class: "switches" });
  /** @type {Keyed<Group>} */
  const groups = new Keyed(switches, group);
  const panel = el("aside", { class: "card panel", "aria-live": "polite" });
  const legend = el("ul", { class: "legend" }, keys(colour));
  root.append(
    el("div", { class: "tools" }, tabs("Colours", "map", COLOURS, colour), search),
    legend,
    el("div", { class: "mapped" }, switches, panel),
  );
  switches.addEventListener("click", (event) => choose(around(event, "button.node")));
  switches.addEventListener("focusin", (event) => choose(around(event, "button.node")));
  switches.addEventListener("keydown", move);
  switches.addEventListener("pointerover", (event) => light(around(event, "[data-job]")?.dataset.job ?? null));
  switches.addEventListener("pointerleave", () => light(null));
  /** @type {ReturnType<typeof store.holders>} */
  let holders = new Map();
  /** @type {string | null} */
  let lit = null;

  /** @param {HTMLElement | null} button */
  function choose(button) {
    const name = button?.dataset.node;
    if (!button || name === undefined || name === chosen) return;
    chosen = name;
    remember(`map/${colour}`, { find, node: chosen });
    showPanel();
    for (const other of switches.querySelectorAll("button.node[tabindex='0']")) other.setAttribute("tabindex", "-1");
    button.setAttribute("tabindex", "0");
    for (const other of switches.querySelectorAll("button.chosen")) other.classList.remove("chosen");
    button.classList.add("chosen");
  }

  /**
   * Arrows go from node to node; one Tab goes in, the next one out.
   * @param {KeyboardEvent} event
   */
  function move(event) {
    const here = around(event, "button.node");
    if (!here) return;
    const all = [.../** @type {NodeListOf<HTMLElement>} */ (switches.querySelectorAll("button.node"))];
    const at = all.indexOf(here);
    const box = here.getBoundingClientRect();
    /** @param {HTMLElement} other */
    const column = (other) => Math.abs(other.getBoundingClientRect().left - box.left);
    /** @param {HTMLElement[]} others */
    const nearest = (others) => {
      const top = others[0]?.getBoundingClientRect().top;
      return others.filter((one) => Math.abs(one.getBoundingClientRect().top - top) < 2).sort((a, b) => column(a) - column(b))[0];
    };
    /** @type {Record<string, () => HTMLElement | undefined>} */
    const rows = {
      ArrowLeft: () => all[at - 1],
      ArrowRight: () => all[at + 1],
      Home: () => all[0],
      End: () => all.at(-1),
      ArrowUp: () => nearest(all.slice(0, at).reverse().filter((one) => one.getBoundingClientRect().bottom <= box.top + 1)),
      ArrowDown: () => nearest(all.slice(at + 1).filter((one) => one.getBoundingClientRect().top >= box.bottom - 1)),
    };
    if (!Object.hasOwn(rows, event.key)) return;
    event.preventDefault();
    rows[event.key]()?.focus();
  }

  /** @param {string | null} job */
  function light(job) {
    if (job === lit) return;
    lit = job;
    for (const cell of switches.querySelectorAll("i.lit")) cell.classList.remove("lit");
    switches.classList.toggle("lighting", job !== null);
    if (job !== null) for (const cell of switches.querySelectorAll(`i[data-job="${CSS.escape(job)}"]`)) cell.classList.add("lit");
  }

  /** @param {string} name @param {Group} row */
  function group(name, { nodes, held, gpus }) {
    return el(
      "section",
      { class: "switch" },
      el("h2", {}, name ? foreign(name) : "no switch", el("span", { class: "soft" }, `${counted(nodes.length, "node")}, ${number(held)} of ${number(gpus)} GPUs held`)),
      el("div", { class: "nodes" }, nodes.map(node)),
    );
  }

  /** @param {Drawn} row */
  function node({ name, cells, note, faint }) {
    const states = [note && "out", faint && "faint", name === chosen && "chosen"].filter(Boolean);
    return el(
      "button",
      { class: `node ${states.join(" ")}`, "data-node": name, "data-focus": name, tabindex: "-1", "aria-label": note ? `${name}: ${note}` : name },
      el("span", { class: "label" }, note ? `${name} !` : name),
      el("span", { class: "gpus" }, cells.map(([kind, job]) => el("i", { class: kind, "data-job": job }))),
    );
  }

  function update() {
    holders = store.holders();
    /** @type {Map<string, Drawn[]>} */
    const by = new Map();
    for (const [name, row] of store.table("nodes")) {
      const there = by.get(row.switch) ?? [];
      there.push(nodeOf(name, row));
      by.set(row.switch, there);
    }
    const groups_of = [...by.entries()].sort((a, b) => ALL.compare(a[0], b[0]));
    groups.show(
      groups_of.map(([name, nodes]) => {
        nodes.sort((a, b) => ALL.compare(a.name, b.name));
        /** @param {"held" | "gpus"} key */
        const sum = (key) => nodes.reduce((so_far, one) => so_far + one[key], 0);
        return [name, { nodes, held: sum("held"), gpus: sum("gpus") }];
      }),
    );
    switches.classList.toggle("dense", store.table("nodes").size > DENSE);
    if (!switches.querySelector("button.node[tabindex='0']"))
      (switches.querySelector("button.chosen") ?? switches.querySelector("button.node"))?.setAttribute("tabindex", "0");
    const again = lit;
    lit = null;
    light(again);
    showPanel();
  }

  /**
   * @param {string} name
   * @param {Page.Node} row
   * @returns {Drawn}
   */
  function nodeOf(name, row) {
    const jobs = holders.get(name) ?? [];
    const cells = colour === "job" ? byJob(row, jobs) : byLoad(row);
    const words = find.toLowerCase();
    const there = !words || name.toLowerCase().includes(words) ||
      jobs.some(([job]) => String(job.job) === words || job.user.toLowerCase().includes(words) || job.name.toLowerCase().includes(words));
    return { name, cells, note: row.note, faint: !there, held: row.elastic + row.other, gpus: row.gpus };
  }

  function showPanel() {
    const row = chosen === null ? undefined : store.table("nodes").get(chosen);
    if (chosen === null || !row) {
      fill(panel, el("p", { class: "note" }, "Choose a node, by a click or with Tab and the arrow keys."));
      return;
    }
    const jobs = holders.get(chosen) ?? [];
    const known = jobs.reduce((sum, [, gpus]) => sum + gpus, 0);
    const busy = row.busy.map((one) => (one === null ? "–" : one)).join(", ");
    fill(
      panel,
      el("h2", {}, foreign(chosen)),
      row.note && el("p", { class: "why" }, `Nothing new is placed on it: ${row.note}.`),
      row.states.length > 0 && el("p", { class: "note" }, `Slurm says ${row.states.join(", ")}.`),
      el(
        "dl",
        {},
        el("dt", {}, "GPUs"),
        el("dd", {}, `${row.gpus}`, row.type ? [" ", foreign(row.type)] : "", `, ${row.gpus - row.elastic - row.other} free`),
        row.switch !== "" && [el("dt", {}, "Switch"), el("dd", {}, foreign(row.switch))],
        el("dt", {}, "Utilisation"),
        el("dd", {}, busy ? `${busy}\u00a0%` : "no agent has reported"),
      ),
      el(
        "ul",
        { class: "holders" },
        jobs.map(([job, gpus]) =>
          el("li", {}, el("i", { class: `key j${job.job % HUES}` }), jobLink(job), el("span", { class: "soft" }, ` ${job.user}, ${counted(gpus, "GPU")}`)),
        ),
        row.elastic > known && el("li", {}, el("i", { class: "key others" }), counted(row.elastic - known, "GPU"), " of others' elastic jobs"),
        row.other > 0 && el("li", {}, el("i", { class: "key plain" }), counted(row.other, "GPU"), " of other jobs"),
      ),
    );
  }
  return { update };
}

/**
 * One cell for each GPU; which of them are whose Slurm does not say, so the jobs are in order.
 * @param {Page.Node} row
 * @param {import("./store.js").Holder[]} jobs
 */
function byJob(row, jobs) {
  /** @type {Cell[]} */
  const cells = [];
  for (const [job, gpus] of jobs) for (let one = 0; one < gpus; one++) cells.push([`j${job.job % HUES}`, String(job.job)]);
  while (cells.length < row.elastic) cells.push(["others", null]);
  for (let one = 0; one < row.other; one++) cells.push(["plain", null]);
  while (cells.length < row.gpus) cells.push(["free", null]);
  return cells.slice(0, row.gpus);
}

/**
 * @param {Page.Node} row
 * @returns {Cell[]}
 */
function byLoad(row) {
  const held = row.elastic + row.other;
  return Array.from({ length: row.gpus }, (_, one) => {
    const busy = row.busy[one];
    if (busy === undefined || busy === null) return ["unknown", null];
    // Which of a node's GPUs are free Slurm does not say: only where all are held one is held idle.
    if (busy < 5) return [held === row.gpus ? "idle" : "free", null];
    return [`u${Math.min(4, Math.floor(busy / 20))}`, null];
  });
}

/** @param {string} colour */
function keys(colour) {
  /** @param {string} name @param {string} words */
  const key = (name, words) => el("li", {}, el("i", { class: `key ${name}` }), words);
  if (colour === "load")
    return [
      ...[0, 1, 2, 3, 4].map((step) => key(`u${step}`, `${step * 20 || 5}–${step * 20 + 20} %`)),
      key("idle", "held, but idle"), key("free", "free"), key("unknown", "not known"), key("out", "not usable"),
    ];
  return [
    el("li", {}, [0, 1, 2, 3].map((hue) => el("i", { class: `key j${hue}` })), "elastic jobs, a colour each"),
    key("others", "others' elastic jobs"), key("plain", "other jobs"), key("free", "free"), key("out", "not usable"),
  ];
}
