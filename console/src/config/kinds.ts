// What a key may hold, read from the words that the schema has for it. The words are made by the balancer from
// the same declarations that its parser uses, so a form never offers what the parser refuses.

import type { Json, Path, Schema, SchemaKey, SchemaTable } from "../types";

export type Kind =
  | { type: "bool" }
  | { type: "choice"; options: string[] }
  | { type: "number"; min: number; max: number; integer: boolean; unit: string }
  | { type: "text"; numeric: boolean; suggest: string[] }
  | { type: "file" }
  | { type: "strategy" }
  | { type: "members" }
  | { type: "table"; header: string; toggle: boolean; list: boolean }
  | { type: "map"; value: string; numeric: boolean }
  | { type: "json" };

export interface Spec { kind: Kind; list: boolean; optional: boolean; hint: string }

const plain = (header: string) => header.replace(/^\[+|\]+$/g, "");

/** Tables that stand in several places, by the end of the place. */
const SAME: [RegExp, string][] = [
  [/^rule\.NAME\.routes\.(mirror|hedge)$/, "rule.NAME.http.$1"],
  [/^rule\.NAME\.routes\.(auth|request_limits)$/, "rule.NAME.$1"],
  [/^(?:rule\.NAME(?:\.routes)?|group\.NAME|defaults)\.response_fields$/, "rule.NAME.routes.request_fields"],
  [/^(?:rule\.NAME\.routes|group\.NAME)\.(maintenance|cors)$/, "rule.NAME.$1"],
  [/^(admin|negotiator)\.tls(.*)$/, "rule.NAME.tls$2"],
  [/^corba\.groups(.*)$/, "group.NAME$1"],
  [/^group\.NAME\.(?:orca\.out_of_band|prometheus|agent_check)\.tls$/, "group.NAME.member_tls"],
  [/^location\.NAME\.monitor$/, "group.NAME.monitor"],
  [/^cluster\.NAME\.class\.[^.]+$/, "cluster.NAME.class.CLASS"],
];
const OF_GROUPS = /^(rule\.NAME|defaults)\.(.+)$/;

/** The path as headers of the schema have it: names are NAME, places in lists are left out. */
export function pattern(path: Path): string {
  const parts = path.filter((part) => typeof part === "string") as string[];
  return parts.map((part, i) => (i === 1 && ["rule", "group", "cluster", "location"].includes(parts[0]!) ? "NAME" : part)).join(".");
}

/** The table of the schema for a place in the configuration. */
export function tableAt(schema: Schema, path: Path): SchemaTable | undefined {
  let at = pattern(path);
  const find = (header: string) => schema.tables.find((table) => plain(table.header) === header);
  const direct = find(at);
  if (direct) return direct;
  for (const [from, to] of SAME) if (from.test(at)) at = at.replace(from, to);
  if (at.startsWith("defaults.")) {
    const found = find(at.replace("defaults.", "rule.NAME.")) ?? find(at.replace("defaults.", "group.NAME."));
    if (found) return found;
  }
  const group = OF_GROUPS.exec(at);
  return find(at) ?? (group ? find(`group.NAME.${group[2]}`) : undefined);
}

/** The name of a place, as problems have it. */
export function keyText(path: Path): string {
  return path.map((part, i) => (typeof part === "number" ? `[${part}]` : `${i ? "." : ""}${part}`)).join("");
}

/** The same for names that were written in another way: with quotes, or with numbers behind dots. */
export function sameKey(key: string): string {
  return key.replaceAll('"', "").replace(/\.(\d+)(?=\.|\[|$)/g, "[$1]");
}

const QUOTED = /"((?:[^"\\]|\\.)*)"/g;
const words = (text: string) => [...text.matchAll(QUOTED)].map((match) => match[1]!);

export function specOf(schema: Schema, key: SchemaKey, path: Path): Spec {
  let rest = key.allowed;
  const optional = /, or false$/.test(rest);
  rest = rest.replace(/, or false$/, "");
  const list = /, or a list$/.test(rest);
  rest = rest.replace(/, or a list$/, "");
  const spec = (kind: Kind): Spec => ({ kind, list: list && kind.type !== "table", optional, hint: key.allowed });
  let match: RegExpExecArray | null;

  if (/^true or false$/.test(rest)) return spec({ type: "bool" });
  if (/^one of "adaptive"/.test(rest)) return spec({ type: "strategy" });
  if (/^a list of addresses/.test(rest) && key.name === "members") return spec({ type: "members" });
  if ((match = /^a table of (?:names|statuses from \d+ to \d+), each with (.*)$/.exec(rest))) return spec({ type: "map", value: match[1]!, numeric: /number/.test(match[1]!) });
  if (/^a table of loads/.test(rest)) return spec({ type: "map", value: "an expression", numeric: false });
  if (/^(a table|the path of a file, or a table)/.test(rest)) {
    const table = tableAt(schema, path);
    if (!table) return spec({ type: "json" });
    const many = list || table.header.startsWith("[[");
    return { kind: { type: "table", header: table.header, toggle: /or true/.test(rest), list: many && !/or true/.test(rest) }, list: false, optional, hint: key.allowed };
  }
  if ((match = /^a (whole )?number from ([\d.]+) to ([\d.]+)(?: \(([^)]*)\))?$/.exec(rest)))
    return spec({ type: "number", integer: match[1] !== undefined, min: +match[2]!, max: +match[3]!, unit: match[4] ?? "" });
  if (/^("[^"]*"(?:, | or )?)+$/.test(rest) && !rest.includes(":NAME") && !rest.includes("="))
    return spec({ type: "choice", options: words(rest) });
  if (/^a time of whole seconds|with one such number as/.test(rest)) return spec({ type: "json" });
  if (/^the path of a file|^the path of/.test(rest)) return spec({ type: "file" });
  const loads = /^([a-z_]+, )+or a number/.exec(rest);
  const suggest = loads ? rest.replace(/, or a number.*/, "").split(", ") : [];
  return spec({ type: "text", numeric: /number of bytes|response code|^a status|or a number|^a whole number/.test(rest), suggest });
}

/** What a default or an example of the schema would be as a value, for fields that show it; null if it is a table. */
export function shown(text: string | null): string {
  if (text === null) return "";
  const trimmed = text.trim();
  if (/^"[^"]*"$/.test(trimmed)) return trimmed.slice(1, -1);
  const list = /^\[("[^"]*"(?:, )?)*\]$/.test(trimmed);
  return list ? words(trimmed).join(", ") : trimmed;
}

/** A value in words, for summaries. */
export function brief(value: Json | undefined): string {
  if (value === undefined) return "";
  if (typeof value === "string") return value;
  if (Array.isArray(value)) return value.every((item) => typeof item !== "object") ? value.map(String).join(", ") : `${value.length} entries`;
  if (value !== null && typeof value === "object") return Object.entries(value).map(([name, item]) => `${name} ${brief(item)}`).join(", ");
  return String(value);
}

/** What somebody typed, as a value; undefined if it is empty. */
export function typedValue(text: string, numeric: boolean): Json | undefined {
  const trimmed = text.trim();
  if (trimmed === "") return undefined;
  if (numeric && /^-?\d+(\.\d+)?$/.test(trimmed)) return Number(trimmed);
  if (trimmed === "false") return false;
  return trimmed;
}
