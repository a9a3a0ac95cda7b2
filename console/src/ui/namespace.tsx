// The choice of a namespace of Kubernetes, the same on each page.

import type { JSX } from "preact";
import { change, sample } from "../live";
import { listNamespaces, namespace, OUTSIDE } from "../namespaces";
import type { Rule } from "../types";
import { useAnswer } from "./kit";

export function NamespaceSelect({ names, outside }: { names: string[]; outside?: string }): JSX.Element | null {
  const chosen = namespace.value;
  // What was chosen can be changed, also if its last group has gone.
  const all = chosen === "" || chosen === OUTSIDE || names.includes(chosen) ? names : [chosen, ...names];
  if (all.length === 0 && chosen === "") return null;
  return (
    <select aria-label="Namespace" value={chosen} onChange={(event) => (namespace.value = event.currentTarget.value)}>
      <option value="">All namespaces</option>
      {all.map((name) => <option key={name} value={name}>{name}</option>)}
      {(outside !== undefined || chosen === OUTSIDE) && <option value={OUTSIDE}>{outside ?? "Without a namespace"}</option>}
    </select>
  );
}

/** The rules, and the namespaces of all groups: those to which rules lead, and those of the last sample. */
export function useRules(keys: unknown[] = []): { rules: Rule[]; names: string[] } {
  const { data } = useAnswer<Rule[]>("/v1/rules", 30, [change.value?.generation, ...keys]);
  const rules = data ?? [];
  const names = listNamespaces([
    ...rules.flatMap((rule) => [rule.group, ...(rule.routed ?? []), ...Object.values(rule.sni ?? {})]),
    ...(sample.value?.groups ?? []).map((group) => group.name),
  ]);
  return { rules, names };
}
