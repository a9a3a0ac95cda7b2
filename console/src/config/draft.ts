// Changes of the configuration that are not applied yet: a list of edits of the revision they were made for.
// Each change of the list is checked by the balancer, so problems are its own words.

import { computed, signal } from "@preact/signals";
import { ApiError, get, send } from "../api";
import type { Config, Edit, Json, Path, Problem, Validated } from "../types";
import { sameKey } from "./kinds";

export const base = signal<Config | null>(null);
export const baseError = signal<unknown>(null);
export const edits = signal<Edit[]>([]);
export const problems = signal<Problem[]>([]);
export const warnings = signal<string[]>([]);
export const needsRestart = signal<string[]>([]);
/** An edit that is not possible at all, or no answer. */
export const checkError = signal<unknown>(null);
export const checking = signal(false);

export const values = computed<{ [key: string]: Json }>(() => (base.value ? applied(base.value.values, edits.value) : {}));

export const byKey = computed(() => {
  const map = new Map<string, Problem[]>();
  for (const problem of problems.value) {
    const key = sameKey(problem.key);
    map.set(key, [...(map.get(key) ?? []), problem]);
  }
  return map;
});

export async function loadBase(): Promise<void> {
  try {
    base.value = await get<Config>("/v1/config");
    baseError.value = null;
    if (edits.value.length) validateSoon();
    else problems.value = [];
  } catch (error) {
    baseError.value = error;
  }
}

const same = (a: unknown, b: unknown) => JSON.stringify(a) === JSON.stringify(b);

export function at(tree: Json | undefined, path: Path): Json | undefined {
  let value: Json | undefined = tree;
  for (const part of path) {
    if (value === null || typeof value !== "object") return undefined;
    value = (value as Record<string | number, Json>)[part];
  }
  return value;
}

/** The tree after the edits; for what is shown only. The balancer applies them to the text. */
export function applied(tree: { [key: string]: Json }, list: Edit[]): { [key: string]: Json } {
  const root = structuredClone(tree) as { [key: string]: Json };
  for (const edit of list) one(root, edit);
  return root;
}

function one(root: { [key: string]: Json }, edit: Edit): void {
  const path = edit.path;
  const last = path.at(-1)!;
  let parent: any = root;
  for (const [i, part] of path.slice(0, -1).entries()) {
    if (parent[part] === null || typeof parent[part] !== "object") {
      if (edit.op !== "set") return;
      parent[part] = typeof path[i + 1] === "number" ? [] : {};
    }
    parent = parent[part];
  }
  if (edit.op === "set") parent[last] = structuredClone(edit.value);
  else if (edit.op === "remove") {
    if (Array.isArray(parent)) parent.splice(last as number, 1);
    else delete parent[last];
    // The balancer removes tables with their last key; empty ones say nothing.
  } else {
    const entries = Object.entries(parent).map(([key, value]) => [key === last ? edit.to : key, value]);
    for (const key of Object.keys(parent)) delete parent[key];
    Object.assign(parent, Object.fromEntries(entries));
    if (path.length === 2 && path[0] === "group") for (const home of ["rule", "cluster", "defaults"]) refer(root[home], String(last), edit.to);
  }
}

function refer(tree: any, from: string, to: string): void {
  if (tree === null || typeof tree !== "object") return;
  if (tree.group === from) tree.group = to;
  if (tree.groups && from in tree.groups) {
    tree.groups[to] = tree.groups[from];
    delete tree.groups[from];
  }
  for (const value of Object.values(tree)) refer(value, from, to);
}

const structural = (edit: Edit) => edit.op === "rename" || (edit.op === "remove" && typeof edit.path.at(-1) === "number");

/** Sets a value, or removes it with `undefined`. */
export function setValue(path: Path, value: Json | undefined): void {
  if (value === undefined && at(values.peek(), path) === undefined) return;
  edits.value = merged(edits.peek(), path, value, base.peek()?.values ?? {});
  validateSoon();
}

/** The list with one more change; a change of a change replaces it, and one back to what was removes it. */
export function merged(list: Edit[], path: Path, value: Json | undefined, tree: { [key: string]: Json }): Edit[] {
  const edit: Edit = value === undefined ? { op: "remove", path } : { op: "set", path, value };
  const last = list.findLastIndex(structural);
  // Within what was itself set as a whole.
  for (let i = list.length - 1; i > last; i--) {
    const known = list[i]!;
    if (known.op !== "set" || known.path.length >= path.length || !same(known.path, path.slice(0, known.path.length))) continue;
    if (known.value === null || typeof known.value !== "object") continue;
    const holder = { value: structuredClone(known.value) };
    one(holder as { [key: string]: Json }, { ...edit, path: ["value", ...path.slice(known.path.length)] } as Edit);
    return [...list.slice(0, i), { ...known, value: holder.value }, ...list.slice(i + 1)];
  }
  const begins = (known: Path) => known.length >= path.length && same(known.slice(0, path.length), path);
  const kept = list.filter((known, i) => i <= last || !begins(known.path));
  const now = at(applied(tree, kept), path);
  if (same(now, value) || (value === undefined && now === undefined)) return kept;
  return [...kept, edit];
}

export function removeItem(path: Path): void {
  edits.value = [...edits.peek(), { op: "remove", path }];
  validateSoon();
}

export function rename(path: Path, to: string): void {
  // What was created in this draft gets its name at once.
  const i = edits.peek().findIndex((edit) => edit.op === "set" && same(edit.path, path));
  if (i >= 0 && at(base.peek()?.values, path) === undefined) {
    const known = edits.peek()[i]!;
    edits.value = edits.peek().map((edit, at) => (at === i ? { ...known, path: [...path.slice(0, -1), to] } : edit));
  } else edits.value = [...edits.peek(), { op: "rename", path, to }];
  validateSoon();
}

export function removeTable(path: Path): void {
  if (at(base.peek()?.values, path) === undefined) {
    edits.value = edits.peek().filter((edit) => !same(edit.path.slice(0, path.length), path));
    validateSoon();
  } else setValue(path, undefined);
}

export function discard(): void {
  edits.value = [];
  problems.value = [];
  warnings.value = [];
  needsRestart.value = [];
  checkError.value = null;
  clearTimeout(timer);
  serial++;
  checking.value = false;
}

let timer = 0;
let serial = 0;

export function validateSoon(): void {
  clearTimeout(timer);
  if (edits.peek().length === 0) return discard();
  checking.value = true;
  timer = window.setTimeout(() => void validate(), 250);
}

async function validate(): Promise<void> {
  const mine = ++serial;
  try {
    const answer = await send<Validated>("POST", "/v1/config/validate", { edits: edits.peek() });
    if (mine !== serial) return;
    problems.value = answer.problems;
    warnings.value = answer.warnings.map(wordsOf);
    needsRestart.value = answer.needs_restart;
    checkError.value = null;
  } catch (error) {
    if (mine !== serial) return;
    checkError.value = error;
    const told = error instanceof ApiError ? (error.body.problems as Problem[] | undefined) : undefined;
    if (told) problems.value = told;
  } finally {
    if (mine === serial) checking.value = false;
  }
}

export function wordsOf(item: unknown): string {
  if (typeof item === "string") return item;
  if (item && typeof item === "object") {
    const { key, message } = item as { key?: string; message?: string };
    return [key, message].filter(Boolean).join(": ") || JSON.stringify(item);
  }
  return String(item);
}

/** Whether something below `path` is changed. What was set as a whole (a new rule) has changed only what it says otherwise. */
export function changedBelow(path: Path): boolean {
  const differs = () => !same(at(values.value, path), at(base.value?.values, path));
  return edits.value.some((edit) => same(edit.path.slice(0, path.length), path) || (same(path.slice(0, edit.path.length), edit.path) && differs()));
}

export function problemsBelow(text: string): number {
  let count = 0;
  for (const [key, list] of byKey.value) if (key === text || key.startsWith(text + ".") || key.startsWith(text + "[")) count += list.length;
  return count;
}
