// How times and numbers are written: as onesctl and Slurm write them.

/** @param {number} number */
const two = (number) => String(number).padStart(2, "0");

/**
 * [D-]HH:MM:SS, or `45 s`.
 * @param {number | null} [seconds]
 */
export function lasting(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return "–";
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) return `${whole} s`;
  const days = Math.floor(whole / 86400);
  const clock = `${two(Math.floor((whole % 86400) / 3600))}:${two(Math.floor(whole / 60) % 60)}:${two(whole % 60)}`;
  return days ? `${days}-${clock}` : clock;
}

/** @type {[unit: number, name: string][]} */
const UNITS = [[86400, "d"], [3600, "h"], [60, "min"]];

/**
 * Roughly: `3 h`, `12 min`.
 * @param {number} seconds
 */
export function roughly(seconds) {
  for (const [unit, name] of UNITS)
    if (seconds >= unit) return `${number(seconds / unit, seconds < 10 * unit ? 1 : 0)} ${name}`;
  return `${Math.round(seconds)} s`;
}

/**
 * `14:20:05` on the day that `now` is in, else with the date.
 * @param {number | null} at
 * @param {number} now
 * @param {{ seconds?: boolean }} how
 */
export function moment(at, now, { seconds = true } = {}) {
  if (!at) return "–";
  const then = new Date(at * 1000);
  const today = new Date(now * 1000).toDateString() === then.toDateString();
  const clock = `${two(then.getHours())}:${two(then.getMinutes())}${seconds ? `:${two(then.getSeconds())}` : ""}`;
  return today ? clock : `${then.getFullYear()}-${two(then.getMonth() + 1)}-${two(then.getDate())} ${clock}`;
}

/** @param {number} at */
export function day(at) {
  const then = new Date(at * 1000);
  return `${two(then.getMonth() + 1)}-${two(then.getDate())}`;
}

/** @param {number | null} [value] */
export function number(value, digits = 0) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  return value.toLocaleString("en-US", { maximumFractionDigits: digits });
}

/** @type {[one: number, name: string][]} */
const PREFIXES = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];

/**
 * In three digits: `0.05`, `250`, `1.5k`, `20M`.
 * @param {number} value
 */
export function short(value) {
  const [unit, name] = PREFIXES.find(([one]) => value >= one) ?? [1, ""];
  return `${Number((value / unit).toPrecision(3))}${name}`;
}

/** @param {number | null} [share] */
export function percent(share, digits = 0) {
  return share === null || share === undefined ? "–" : `${number(100 * share, digits)}\u00a0%`;
}

/**
 * `1 job`, `2 jobs`.
 * @param {number} count
 * @param {string} thing
 */
export function counted(count, thing) {
  return `${number(count)} ${thing}${count === 1 ? "" : "s"}`;
}
