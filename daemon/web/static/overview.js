// The cluster at a glance: its GPUs, its queue, and what elasticity gave.

import { el, fill, Keyed } from "./dom.js";
import { line, narrow, stacked } from "./charts.js";
import { eventRow } from "./events.js";
import { jobLink } from "./queue.js";
import { counted, moment, number, percent, roughly } from "./words.js";

export const title = "Overview";

/** @type {[name: "elastic" | "other" | "free" | "unusable", words: string][]} */
const KINDS = [
  ["elastic", "elastic jobs"],
  ["other", "other jobs"],
  ["free", "free"],
  ["unusable", "not usable"],
];

/** @type {import("./main.js").Open} */
export function open(root, store) {
  const problems = el("ul", { class: "problems" });
  const bar = el("div", { class: "bar", role: "img" });
  const legend = el("ul", { class: "legend" });
  const gpus = el("p", { class: "about" });
  const tiles = el("div", { class: "tiles" });
  const gains = el("div", { class: "tiles" });
  const gainNote = el("p", { class: "note" });
  const used = el("figure", {});
  const waiting = el("figure", {});
  const first = el("ol", { class: "rows" });
  const latest = el("ol", { class: "rows events" });
  /** @type {Keyed<Page.Job & Page.Reason>} */
  const queue = new Keyed(first, (_, row) => waitingRow(row, store));
  /** @type {Keyed<Page.Event>} */
  const log = new Keyed(latest, (_, row) => eventRow(row, store));
  root.append(
    problems,
    el("section", { class: "card" }, el("h2", {}, "GPUs"), bar, legend, gpus),
    tiles,
    el(
      "div",
      { class: "two" },
      el("section", { class: "card" }, el("h2", {}, "GPUs held"), used),
      el("section", { class: "card" }, el("h2", {}, "Elastic jobs that wait"), waiting),
    ),
    el("section", { class: "card" }, el("h2", {}, "What elasticity gave"), gains, gainNote),
    el(
      "div",
      { class: "two" },
      el("section", { class: "card" }, el("h2", {}, el("a", { href: "#/queue/waiting" }, "Waiting longest")), first),
      el("section", { class: "card" }, el("h2", {}, el("a", { href: "#/events" }, "Latest events")), latest),
    ),
  );
  return {
    update() {
      const { cluster, problems: found } = store.values;
      problems.hidden = found.length === 0;
      fill(problems, found.map((one) => el("li", {}, one)));
      showGpus(cluster.gpus, cluster.segments, { bar, legend, gpus });
      fill(tiles, showTiles(cluster));
      showHistory(store, used, waiting);
      fill(gains, showGains(cluster.gain));
      fill(
        gainNote,
        cluster.gain.since === null
          ? "No round has ended yet."
          : `Since onesd was started, ${moment(cluster.gain.since, store.now, { seconds: false })}, beside a queue that ` +
              "onesd keeps in which every elastic job has the GPUs that it asked for, in Slurm's order.",
      );
      const jobs = [...store.table("jobs").entries()].filter(([, job]) => !job.gpus);
      jobs.sort((a, b) => a[1].submitted - b[1].submitted);
      queue.show(jobs.slice(0, 6).map(([key, job]) => [key, store.explained(job)]), store.day);
      first.classList.toggle("none", jobs.length === 0);
      const happened = [...store.table("events").entries()].sort((a, b) => b[1].at - a[1].at);
      log.show(happened.slice(0, 6), store.day);
      latest.classList.toggle("none", happened.length === 0);
    },
  };
}

/**
 * @param {Page.Cluster["gpus"]} gpus
 * @param {Page.Cluster["segments"]} segments
 * @param {{ bar: HTMLElement, legend: HTMLElement, gpus: HTMLElement }} places
 */
function showGpus(gpus, segments, { bar, legend, gpus: about }) {
  /** @param {number} count */
  const share = (count) => percent(count / Math.max(gpus.total, 1));
  bar.setAttribute("aria-label", KINDS.map(([name, words]) => `${gpus[name]} ${words}`).join(", "));
  fill(
    bar,
    KINDS.filter(([name]) => gpus[name]).map(([name, words]) => {
      const part = el("span", { class: `fill ${name}`, title: `${gpus[name]} ${words}, ${share(gpus[name])}` });
      part.style.flexGrow = String(gpus[name]);
      return part;
    }),
  );
  fill(
    legend,
    KINDS.map(([name, words]) =>
      el("li", {}, el("i", { class: `key fill ${name}` }), el("b", {}, number(gpus[name])), ` ${words}`),
    ),
    gpus.idle !== null &&
      el("li", { title: "GPUs that a job holds and that work less than 5 % of the time" },
        el("i", { class: "key idle" }), el("b", {}, number(gpus.idle)), " held, but idle"),
    el("li", { class: "total" }, el("b", {}, number(gpus.total)), " in all"),
  );
  const free = segments.map(([size, nodes]) => `${counted(nodes, "node")} with ${size}`);
  fill(about, free.length ? `Free on one node: ${free.reverse().join(", ")}.` : "No GPU is free.");
}

/** @param {string} value @param {string} words @param {string | null} [title] @param {string} [href] */
function tile(value, words, title, href) {
  const content = [el("b", {}, value), el("span", {}, words)];
  return href ? el("a", { class: "tile", href, title }, content) : el("div", { class: "tile", title }, content);
}

/** @param {Page.Cluster} cluster */
function showTiles({ jobs, gap, round }) {
  return [
    tile(number(jobs.running), "elastic jobs run", null, "#/queue/running"),
    tile(number(jobs.waiting), "wait", null, "#/queue/waiting"),
    tile(number(jobs.moving), "being moved", "Moves under way: starts, resizes, preemptions", "#/events"),
    tile(
      gap === null ? "–" : percent(gap, 2),
      "plan's gap",
      "How far the plan is, at most, from the best possible one; not every policy knows it",
      "#/plan",
    ),
    tile(`${number(round.seconds, round.seconds < 10 ? 1 : 0)} s`, "the last round took", round.outcome, "#/plan"),
  ];
}

/** @param {Page.Gain} gain */
function showGains({ saved, ahead, behind, begun, refused }) {
  const moves = Object.entries(begun).map(([kind, times]) => counted(times, kind)).join(", ");
  return [
    tile(number(ahead), "jobs are ahead", "They run, or have ended, where with fixed sizes they would not yet"),
    tile(number(behind), "jobs are behind", "With fixed sizes they would run, or have ended, by now"),
    tile(
      `${saved < 0 ? "−" : ""}${roughly(Math.abs(saved))}`,
      saved < 0 ? "of completion time lost" : "of completion time saved",
      "All jobs together: what ended sooner than with fixed sizes, less what ends later",
    ),
    tile(number(Object.values(begun).reduce((sum, one) => sum + one, 0)), "moves begun", moves || "none yet", "#/events"),
    tile(number(refused), "moves refused", "By the guard, whatever the policy wanted", "#/events/refusals"),
  ];
}

/** @param {import("./store.js").Store} store @param {HTMLElement} used @param {HTMLElement} waiting */
function showHistory(store, used, waiting) {
  const points = [...store.table("history").values()].sort((a, b) => a[0] - b[0]);
  if (points.length < 2) {
    for (const figure of [used, waiting]) fill(figure, el("p", { class: "empty" }, "Drawn from the second round on."));
    return;
  }
  const total = Math.max(...points.map((point) => point[3]));
  const size = { width: narrow() ? 360 : 560, height: narrow() ? 150 : 170 };
  const held = stacked(points, ["elastic", "other"], { most: total, label: "GPUs held over time", ...size });
  fill(used, held.root);
  const most = Math.max(4, ...points.map((point) => point[4]));
  fill(waiting, line(points.map((point) => [point[0], point[4]]), "wait", { most, label: "Elastic jobs that wait, over time", ...size }).root);
}

/** @param {Page.Job & Page.Reason} job @param {import("./store.js").Store} store */
function waitingRow(job, store) {
  return el(
    "li",
    {},
    el("span", { class: "what" }, jobLink(job), el("span", { class: "soft" }, ` since ${moment(job.submitted, store.now)}`)),
    el("span", { class: "why" }, job.why || "–"),
  );
}
