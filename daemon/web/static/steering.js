// What operators may do: pause, resume, and set the policy. onesd checks again who asks.

import { el, fill } from "./dom.js";
import { asked, lineOf } from "./reach.js";

export const title = "Steering";

/** @type {import("./main.js").Open} */
export function open(root, store) {
  const state = el("p", { class: "about" });
  const said = el("p", { class: "said", role: "status" });
  const reason = el("input", { id: "reason", maxlength: 200, placeholder: "Why, for those who look", autocomplete: "off" });
  const pause = el("button", { type: "submit", class: "strong" }, "Pause");
  const resume = el("button", { type: "button", class: "strong", click: () => act("/do/resume", {}, "Resumed.") }, "Resume");
  const pausing = el(
    "form",
    { submit: (event) => (event.preventDefault(), act("/do/pause", { reason: reason.value }, "Paused.")) },
    el("label", { for: "reason" }, "Reason"),
    reason,
    pause,
  );
  const choice = el("select", { id: "policy" });
  const choosing = el(
    "form",
    { submit: (event) => (event.preventDefault(), act("/do/policy", { policy: choice.value || null }, "The policy is set, from the next round on.")) },
    el("label", { for: "policy" }, "Policy"),
    choice,
    el("button", { type: "submit", class: "strong" }, "Set"),
  );
  const policy = el("p", { class: "about" });
  root.append(
    el("section", { class: "card" }, el("h2", {}, "Moves"), state, pausing, resume),
    el("section", { class: "card" }, el("h2", {}, "Policy"), policy, choosing),
    said,
  );
  let offered = "";
  let known = ""; // what may be steered, as it was shown last
  let changes = false; // an order was given, and what it changes hasn't been seen

  /** @param {string} path @param {object} body @param {string} words */
  async function act(path, body, words) {
    fill(said, "…");
    said.classList.remove("bad");
    changes = true;
    try {
      await asked("POST", path, body);
      fill(said, words);
      reason.value = "";
    } catch (fault) {
      changes = false;
      said.classList.add("bad");
      fill(said, lineOf(fault));
    }
  }

  return {
    update() {
      const { cluster, policies = [] } = store.values;
      const may = store.operator;
      const { paused } = cluster;
      const is = JSON.stringify([paused, cluster.policy]);
      // An answer is of no use any more once others have steered.
      if (known !== is && !changes) fill(said);
      if (known !== is) changes = false;
      known = is;
      fill(
        state,
        cluster.mode === "observe"
          ? "onesd observes: it decides, and begins nothing (mode in its configuration)."
          : paused
            ? `Paused by ${paused.by}: ${paused.reason}. No move is begun; those under way are finished.`
            : "onesd acts. When it is paused no move is begun, those under way are finished, and new jobs go straight to Slurm.",
        may ? "" : " Only operators (Slurm's AdminLevel) may change that.",
      );
      pausing.hidden = !may || Boolean(paused);
      resume.hidden = !may || !paused;
      choosing.hidden = !may;
      const set = cluster.policy === cluster.configured ? "from the configuration" : `set by an operator; the configuration says ${cluster.configured}`;
      fill(policy, `Policy ${cluster.policy} decides, ${set}.`);
      const wanted = JSON.stringify([policies, cluster.policy]);
      if (may && offered !== wanted && document.activeElement !== choice) {
        offered = wanted;
        const names = policies.includes(cluster.policy) ? policies : [cluster.policy, ...policies];
        fill(
          choice,
          names.map((name) => el("option", { value: name, selected: name === cluster.policy }, name)),
          el("option", { value: "" }, `the configuration's (${cluster.configured})`),
        );
      }
    },
  };
}
