// The plan of the last round beside what jobs hold now.

import { el, fill, foreign, Keyed, measure, table } from "./dom.js";
import { jobLink } from "./queue.js";
import { counted, moment, number, percent } from "./words.js";

export const title = "Plan";

/** @typedef {import("./queue.js").NamedJob} NamedJob */

/** @type {import("./main.js").Open} */
export function open(root, store) {
  const about = el("p", { class: "about" });
  const scale = el("p", { class: "note" });
  const changes = el("tbody");
  /** @type {Keyed<{ decision: Page.Decision, job: NamedJob, most: number }>} */
  const rows = new Keyed(changes, (_, { decision, job, most }) => row(decision, job, most));
  const none = el("p", { class: "empty" });
  const planned = table(["Job", "Move", "Now and planned", "Where to", "Batch", "Verdict", "Why"], changes);
  const stays = el("ul", { class: "chips" });
  /** @type {Keyed<NamedJob & { gpus: string }>} */
  const chips = new Keyed(stays, (_, job) => el("li", {}, jobLink(job), el("span", { class: "soft" }, ` ${job.gpus}`)));
  const staying = el("h2");
  root.append(
    el("section", { class: "card" }, el("h2", {}, "The plan beside the present"), about, scale, el("div", { class: "wide" }, planned), none),
    el("section", { class: "card" }, staying, stays),
  );
  return {
    update() {
      const { cluster } = store.values;
      const decisions = [...store.table("plan").entries()];
      const jobs = store.table("jobs");
      const most = Math.max(1, ...decisions.map(([, one]) => Math.max(one.gpus, one.gpus_after)));
      const acted = cluster.mode === "observe" ? " In observe mode nothing of it is done." : cluster.paused ? " While onesd is paused nothing of it is begun." : "";
      const of = store.operator ? "" : " of yours";
      const best = cluster.gap === null ? "" : `, at most ${percent(cluster.gap, 2)} from the best possible one`;
      fill(
        about,
        cluster.round.number
          ? `Round ${cluster.round.number}, ${moment(cluster.round.at, store.now)}, policy ${cluster.policy}${best}. ${counted(decisions.length, "job")}${of} would change.${acted}`
          : "No round has ended yet.",
      );
      fill(scale, decisions.length ? [el("i", { class: "key now" }), " holds now  ", el("i", { class: "key then" }), ` planned; the longest is ${counted(most, "GPU")}`] : "");
      rows.show(decisions.map(([key, decision]) => [key, { decision, job: named(decision.job, jobs.get(String(decision.job))), most }]));
      planned.hidden = decisions.length === 0;
      fill(none, `The plan leaves every job${of} as it is.`);
      none.hidden = decisions.length > 0;
      const moved = new Set(decisions.map(([, one]) => String(one.job)));
      const same = [...jobs.entries()].filter(([key, job]) => job.gpus && !moved.has(key));
      same.sort((a, b) => b[1].gpus - a[1].gpus || a[1].job - b[1].job);
      fill(staying, `${counted(same.length, "job")}${of} ${same.length === 1 ? "stays" : "stay"} as ${same.length === 1 ? "it is" : "they are"}`);
      chips.show(same.slice(0, 400).map(([key, job]) => [key, { job: job.job, name: job.name, gpus: counted(job.gpus, "GPU") }]));
    },
  };
}

/**
 * Of a job what a link to it needs: with the whole of it a row would be made anew each time.
 * @param {number} number
 * @param {Page.Job} [job]
 * @returns {NamedJob}
 */
const named = (number, job) => ({ job: number, name: job?.name });

/** @param {Page.Decision} decision @param {NamedJob} job @param {number} most */
function row(decision, job, most) {
  const verdict = decision.verdict.split(":")[0];
  const why = decision.verdict.includes(": ") ? decision.verdict.slice(verdict.length + 2) : "";
  return el(
    "tr",
    {},
    el("th", { scope: "row" }, jobLink(job)),
    el("td", {}, el("span", { class: `kind ${decision.kind}` }, decision.kind)),
    el("td", {}, both(decision, most)),
    el("td", {}, decision.target ? foreign(decision.target) : "–"),
    el("td", { class: "number" }, decision.batch === null ? "–" : number(decision.batch)),
    el("td", {}, el("span", { class: `outcome ${verdict === "begun" ? "done" : verdict === "waits" ? "moving" : "refused"}` }, verdict)),
    el("td", { class: "why" }, decision.reason, why && el("span", { class: "soft" }, ` (${why})`)),
  );
}

/** @param {Page.Decision} decision @param {number} most */
function both({ gpus, gpus_after: after }, most) {
  /** @param {string} name @param {number} count */
  const of = (name, count) => measure(count / most, String(count), name);
  return el("span", { class: "both", role: "img", "aria-label": `${gpus} GPUs now, ${after} planned` }, of("now", gpus), of("then", after));
}
