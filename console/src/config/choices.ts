// Decisions about the tables of an image: which take the place of those here, and which get another name.

import type { Import } from "../types";

/** Decision about a table of an image that differs from the one here. */
export type Choice = { how: "replace" } | { how: "rename"; to: string };

/** The body of an import with these choices; those without a name yet say nothing. */
export function importOf(text: string, choices: Record<string, Choice>): Import {
  const rename: Record<string, string> = {};
  const replace: string[] = [];
  for (const [path, choice] of Object.entries(choices)) {
    if (choice.how === "replace") replace.push(path);
    else if (choice.to) rename[path] = choice.to;
  }
  return { text, rename, replace };
}

/** The tables that somebody has to decide about: those that differ, and those that were decided about. Under a new name a table is none of the image. */
export function asked(clashes: string[], choices: Record<string, Choice>): string[] {
  const renamed = new Set(Object.entries(choices).flatMap(([path, choice]) => (choice.how === "rename" && choice.to ? [`${path.split(".")[0]}.${choice.to}`] : [])));
  return [...Object.keys(choices), ...clashes.filter((path) => !(path in choices) && !renamed.has(path))];
}
