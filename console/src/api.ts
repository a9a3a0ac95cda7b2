// Questions to the balancer, and changes.

import { signal } from "@preact/signals";
import type { Role, Session } from "./types";

export const session = signal<Session | null>(null);

const RANK: Record<Role, number> = { view: 0, operate: 1, administer: 2 };

export function may(role: Role): boolean {
  const has = session.value?.role;
  return has !== null && has !== undefined && RANK[has] >= RANK[role];
}

/** An answer that is not a success, as the API words it. */
export class ApiError extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    detail: string,
    readonly allowed: string[],
    readonly body: Record<string, unknown>,
  ) {
    super(detail);
  }
}

export function toLogin(): void {
  location.assign(`../login/?next=${encodeURIComponent(location.hash)}`);
}

interface Options { revision?: string; signal?: AbortSignal; headers?: Record<string, string> }

export async function ask(method: string, path: string, body?: unknown, options: Options = {}): Promise<Response> {
  const headers: Record<string, string> = { ...options.headers };
  if (method !== "GET") {
    headers["Content-Type"] = "application/json";
    if (session.value?.csrf) headers["X-Csrf-Token"] = session.value.csrf;
  }
  if (options.revision !== undefined) headers["If-Match"] = `"${options.revision}"`;
  let response: Response;
  try {
    const init: RequestInit = { method, headers, credentials: "same-origin", cache: "no-store" };
    if (method !== "GET") init.body = JSON.stringify(body ?? {});
    if (options.signal) init.signal = options.signal;
    response = await fetch(path, init);
  } catch (error) {
    if (options.signal?.aborted) throw error;
    throw new ApiError(0, "no_connection", "the balancer does not answer", [], {});
  }
  if (response.ok) return response;
  let told: Record<string, unknown> = {};
  try {
    told = (await response.json()) as Record<string, unknown>;
  } catch {
    // Not one of the API's own answers; the status has to do.
  }
  if (response.status === 401 && !path.endsWith("/login")) toLogin();
  throw new ApiError(
    response.status,
    String(told.error ?? "failed"),
    String(told.detail ?? `the balancer answers ${response.status}`),
    Array.isArray(told.allowed) ? told.allowed.map(String) : [],
    told,
  );
}

export async function get<T>(path: string, signal?: AbortSignal): Promise<T> {
  const response = await ask("GET", path, undefined, signal ? { signal } : {});
  return (await response.json()) as T;
}

export async function send<T = { ok: boolean }>(method: "PUT" | "POST" | "PATCH", path: string, body?: unknown, revision?: string): Promise<T> {
  const response = await ask(method, path, body, revision === undefined ? {} : { revision });
  return (await response.json()) as T;
}

export const part = encodeURIComponent;

/** A message as a sentence: with a capital, unless it begins with a path, an address or the name of a key. */
export function sentence(text: string): string {
  return /^[a-z]+[ ,:]/.test(text) ? text.charAt(0).toUpperCase() + text.slice(1) : text;
}

export function words(error: unknown): string {
  if (error instanceof ApiError) {
    const text = sentence(error.message);
    return error.allowed.length ? `${text}. Allowed: ${error.allowed.join(", ")}` : text;
  }
  return error instanceof Error ? error.message : String(error);
}
