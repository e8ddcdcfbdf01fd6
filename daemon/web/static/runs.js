// A replay as its report has it: the jobs of the trace, and what became of each under every policy.

/**
 * A job of the trace, where it stands there, and all that is searched of it; `also`: its family, where the name
 * does not tell it, as the numbers of sacct do not.
 * @typedef {{ at: number, number: number, name: string, also: string, family: string, user: string, account: string, submitted: number, asked: number, sizes: string, words: string }} Job
 */
/**
 * What became of it under a policy; `cut`: its time limit ended it; `changes` are pairs: when, and GPUs from then on.
 * @typedef {{ finished: number, waited: number, resizes: number, cut: boolean, took: number, changes: number[] }} Lived
 */
/** @typedef {{ times: number[], values: number[] }} Curve */
/** @typedef {Omit<Report.Run, "jobs" | "busy" | "waiting"> & { jobs: Lived[], busy: Curve, waiting: Curve }} Run */
/** @typedef {import("./charts.js").Point} Point */

/** Decodes what daemon/replay/report.py writes. Times are seconds since the beginning of the trace. */
export class Replay {
  /** @param {Report.Data} data */
  constructor(data) {
    const { texts } = data;
    this.facts = data;
    this.end = data.end;
    /** @type {Job[]} */
    this.jobs = data.jobs.map(([name, family, user, account, submitted, asked, sizes], at) => ({
      at,
      number: at + 1,
      name,
      also: name.startsWith(texts[family]) ? "" : texts[family],
      family: texts[family],
      user: texts[user],
      account: texts[account],
      submitted,
      asked,
      sizes: texts[sizes],
      words: `${at + 1} ${name} ${texts[family]} ${texts[user]} ${texts[account]}`.toLowerCase(),
    }));
    /** @type {Run[]} */
    this.runs = data.runs.map((run) => ({
      ...run,
      jobs: run.jobs.map(([finished, waited, resizes, atLimit, changes], at) => {
        const { submitted } = this.jobs[at];
        return { finished, waited, resizes, cut: atLimit === 1, took: finished - submitted, changes: absolute(submitted, changes) };
      }),
      busy: curve(run.busy),
      waiting: curve(run.waiting),
    }));
    this.most = this.jobs.map((job) => Math.max(1, ...this.runs.map((run) => largest(run.jobs[job.at].changes))));
    this.mostGpus = this.most.reduce((one, other) => Math.max(one, other), 1);
  }

  /**
   * What a job took under a policy, as a share of what it took under the first one; null: that took no time, or
   * under one of them it was not done.
   * @param {Job} job
   * @param {number} which
   */
  ratio(job, which) {
    const [first, other] = [this.runs[0].jobs[job.at], this.runs[which].jobs[job.at]];
    return first.took > 0 && !first.cut && !other.cut ? other.took / first.took : null;
  }

  /**
   * In this order those that have all of these words in their number, name, user or account; without any,
   * those that lived in these times under any policy.
   * @param {string} find
   * @param {string} order
   * @param {{ from: number, to: number }} times
   */
  found(find, order, { from, to }) {
    const words = find.toLowerCase().split(/\s+/).filter(Boolean);
    /** @param {Job} job */
    const lived = (job) => job.submitted <= to && this.runs.some((run) => run.jobs[job.at].finished >= from);
    /** @param {Job} job */
    const named = (job) => words.every((word) => job.words.includes(word));
    return this.jobs.filter(words.length ? named : lived).sort(this.sorting(order));
  }

  /**
   * `submitted`, `name`, `took`, `changes`, `gained-1`, `lost-1`: under the policy of that number, against the first.
   * @param {string} order
   * @returns {(one: Job, other: Job) => number}
   */
  sorting(order) {
    const [what, which] = order.split("-");
    if (what === "name") return (a, b) => ALIKE.compare(a.family, b.family) || ALIKE.compare(a.name, b.name) || a.at - b.at;
    const value = this.value(what, this.runs[Number(which)]?.jobs);
    return (a, b) => value(a) - value(b) || a.at - b.at;
  }

  /**
   * By which an order goes. Who is ended by a time limit takes for ever; under both policies, nobody gained or lost.
   * @param {string} order
   * @param {Lived[]} [against]
   * @returns {(job: Job) => number}
   */
  value(order, against) {
    const first = this.runs[0].jobs;
    if (order === "took") return (job) => -first[job.at].took;
    if (order === "changes") return (job) => -this.runs.reduce((sum, run) => sum + run.jobs[job.at].resizes, 0);
    if ((order === "gained" || order === "lost") && against) {
      const sign = order === "gained" ? 1 : -1;
      /** @param {Lived} lived */
      const length = ({ cut, took }) => (cut ? Infinity : took);
      return ({ at }) => (first[at].cut && against[at].cut ? Infinity : sign * (length(against[at]) - length(first[at])));
    }
    return (job) => job.submitted;
  }
}

const ALIKE = new Intl.Collator("en", { numeric: true });

/**
 * [at, gpus, at, gpus, ...] from pairs of which each tells the seconds since the one before.
 * @param {number} submitted
 * @param {number[]} changes
 */
function absolute(submitted, changes) {
  let at = submitted;
  return changes.map((value, index) => (index % 2 ? value : (at += value)));
}

/** @param {number[]} changes */
function largest(changes) {
  let most = 0;
  for (let index = 1; index < changes.length; index += 2) most = Math.max(most, changes[index]);
  return most;
}

/**
 * Tells of each stretch of a job's life, those without GPUs included. With GPUs one may have no length: less than half a second.
 * @param {Job} job
 * @param {Lived} lived
 * @param {(from: number, to: number, gpus: number) => void} tell
 */
export function eachStretch(job, { changes }, tell) {
  let [from, gpus] = [job.submitted, 0];
  for (let index = 0; index < changes.length; index += 2) {
    if (changes[index] > from || gpus) tell(from, changes[index], gpus);
    [from, gpus] = [changes[index], changes[index + 1]];
  }
}

/**
 * @param {Report.Curve} written
 * @returns {Curve}
 */
function curve([steps, values]) {
  let at = 0;
  return { times: steps.map((step) => (at += step)), values };
}

/**
 * What there is of a curve between two times: exact, or, where that is too much, the means of `most` intervals.
 * @param {Curve} curve
 * @param {number} from
 * @param {number} to
 * @param {number} most
 * @returns {Point[]}
 */
export function between({ times, values }, from, to, most) {
  let first = after(times, from) - 1;
  const last = after(times, to) - 1;
  /** @param {number} index */
  const valueAt = (index) => (index < 0 ? 0 : values[index]);
  if (last - first <= most) {
    /** @type {Point[]} */
    const points = [[from, valueAt(first)]];
    for (let index = first + 1; index <= last; index += 1) points.push([times[index], values[index]]);
    return [...points, [to, valueAt(last)]];
  }
  /** @type {Point[]} */
  const points = [];
  for (let number = 0; number < most; number += 1) {
    const begin = from + ((to - from) * number) / most;
    const end = from + ((to - from) * (number + 1)) / most;
    let sum = 0;
    let at = begin;
    while (first + 1 < times.length && times[first + 1] <= end) {
      sum += valueAt(first) * (times[first + 1] - at);
      first += 1;
      at = times[first];
    }
    points.push([begin, (sum + valueAt(first) * (end - at)) / (end - begin)]);
  }
  return [...points, [to, points[points.length - 1][1]]];
}

/**
 * How many of these ascending times are not after this one.
 * @param {number[]} times
 * @param {number} at
 */
function after(times, at) {
  let [low, high] = [0, times.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (times[middle] <= at) low = middle + 1;
    else high = middle;
  }
  return low;
}
