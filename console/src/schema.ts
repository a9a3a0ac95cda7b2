// What may stand in the configuration, asked for once.

import { effect, signal } from "@preact/signals";
import { get, session } from "./api";
import type { Schema, SchemaStrategy } from "./types";

export const schema = signal<Schema | null>(null);

let asked = false;
effect(() => {
  const who = session.value;
  if (asked || !who || (who.login && !who.user && !who.free)) return;
  asked = true;
  get<Schema>("/v1/config/schema").then((answer) => (schema.value = answer), () => (asked = false));
});

export function strategy(name: string): SchemaStrategy | undefined {
  return schema.value?.strategies.find((known) => known.name === name);
}
