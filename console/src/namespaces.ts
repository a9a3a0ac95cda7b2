// Namespaces of Kubernetes. The controller gives each group the name kubernetes.NAMESPACE.SERVICE.PORT, and a name of a
// namespace has no dot.

import { signal } from "@preact/signals";
import type { Rule, RuleSample, Sample } from "./types";

/** The namespace whose groups and rules are shown; empty for all, or `OUTSIDE`. */
export const namespace = signal("");

/** Stands for groups that are not of Kubernetes; no namespace has such a name. */
export const OUTSIDE = "-";

/** The namespace of a group; null for a group of the configuration. */
export function namespaceOf(group: string): string | null {
  return /^kubernetes\.([^.]+)\../.exec(group)?.[1] ?? null;
}

/** What the names of all groups of a namespace begin with, for the stream of samples; null for no namespace. */
export function prefixOf(namespace: string | null): string | null {
  return namespace && namespace !== OUTSIDE ? `kubernetes.${namespace}.` : null;
}

/** The groups to which a rule leads. */
export function groupsOf(rule: RuleSample, known: Rule | undefined): string[] {
  return [...new Set([rule.group, ...(known?.routed ?? []), ...Object.values(known?.sni ?? {})])].filter(Boolean);
}

/** The namespaces of groups, in order. */
export function listNamespaces(groups: Iterable<string>): string[] {
  const found = new Set<string>();
  for (const group of groups) {
    const name = namespaceOf(group);
    if (name !== null) found.add(name);
  }
  return [...found].sort();
}

export function isIn(group: string, chosen: string): boolean {
  const name = namespaceOf(group);
  return chosen === "" || (chosen === OUTSIDE ? name === null : name === chosen);
}

/** The part of a sample that is of a namespace: its groups, and the rules that lead to one of them. */
export function narrow(sample: Sample, rules: Rule[], chosen: string): Sample {
  if (chosen === "") return sample;
  const known = new Map(rules.map((rule) => [rule.name, rule]));
  return {
    ...sample,
    groups: sample.groups.filter((group) => isIn(group.name, chosen)),
    rules: sample.rules.filter((rule) => groupsOf(rule, known.get(rule.name)).some((group) => isIn(group, chosen))),
  };
}
