// What counts as trouble, the same on each page.

import type { Level } from "./ui/icons";
import type { GroupSample, RuleSample } from "./types";

const STATES: Record<string, { level: Level; word: string }> = {
  up: { level: "ok", word: "up" },
  warming: { level: "ok", word: "warming" },
  standby: { level: "off", word: "standby" },
  shedding: { level: "warn", word: "shedding" },
  draining: { level: "off", word: "draining" },
  maintenance: { level: "off", word: "maintenance" },
  reported_drain: { level: "off", word: "drain (reported)" },
  reported_maintenance: { level: "off", word: "maintenance (reported)" },
  down: { level: "bad", word: "down" },
  dead: { level: "bad", word: "dead" },
  reported_down: { level: "bad", word: "down (reported)" },
  ejected: { level: "bad", word: "ejected" },
  unresolved: { level: "bad", word: "unresolved" },
};

export function stateOf(state: string): { level: Level; word: string } {
  return STATES[state] ?? { level: "warn", word: state };
}

const RANK: Record<Level, number> = { bad: 3, warn: 2, off: 1, ok: 0 };

/** For sorting: trouble first. */
export function rank(state: string): number {
  return RANK[stateOf(state).level];
}

/** What is wrong with a group, worst first; empty if nothing is. */
export function troubles(group: GroupSample): { level: Level; text: string }[] {
  const list: { level: Level; text: string }[] = [];
  if (group.members > 0 && group.up === 0) list.push({ level: "bad", text: "no member may be used" });
  else if (group.panic) list.push({ level: "bad", text: "panic: health is ignored, as too many members are out" });
  const failures = group.failures ?? 0;
  if (failures >= 0.05) list.push({ level: "bad", text: `${(failures * 100).toFixed(1)} % of requests fail` });
  else if (failures >= 0.01) list.push({ level: "warn", text: `${(failures * 100).toFixed(1)} % of requests fail` });
  const out = group.members - group.up;
  if (out > 0 && group.up > 0) list.push({ level: "warn", text: `${out} of ${group.members} members out` });
  if (group.alerts > 0) list.push({ level: "warn", text: `${group.alerts} load alert${group.alerts === 1 ? "" : "s"}` });
  if (group.queue > 0) list.push({ level: "warn", text: `${group.queue} waiting for a member` });
  return list;
}

export function levelOf(group: GroupSample): Level {
  return troubles(group)[0]?.level ?? "ok";
}

export function ruleLevel(rule: RuleSample, group: GroupSample | undefined): Level {
  if (!rule.enabled || rule.maintenance) return "off";
  if (group && group.members > 0 && group.up === 0) return "bad";
  const failures = rule.failures ?? 0;
  if (failures >= 0.05) return "bad";
  return failures >= 0.01 ? "warn" : "ok";
}
