// What was chosen in a view, as the address of the page has it.

/**
 * Put it there, without a new entry in the browser's history.
 * @param {string} view
 * @param {Record<string, string | null>} chosen what is empty is left out
 */
export function remember(view, chosen) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(chosen)) if (value) query.set(name, value);
  const words = query.toString();
  history.replaceState(null, "", `#/${view}${words && `?${words}`}`);
}
