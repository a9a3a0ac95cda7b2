// The answers of the API that the console reads. What is not known is null.

export type Role = "view" | "operate" | "administer";

export interface Session { user: string | null; role: Role | null; csrf: string | null; login: boolean; free: boolean }

export interface RuleSample { name: string; enabled: boolean; maintenance: boolean; rate: number; failures: number | null; group: string }
export interface GroupSample {
  name: string; rate: number; failures: number | null; p50_ms: number | null; p99_ms: number | null;
  in_flight: number; queue: number; up: number; members: number; panic: boolean; alerts: number; spread: number | null;
}
export interface MemberSample {
  name: string; state: string; admin: AdminState; weight: number; effective_weight: number; share: number; rate: number; failures: number | null;
  in_flight: number; p50_ms: number | null; p99_ms: number | null; load: number | null; alert: boolean;
}
export interface Sample {
  t: number;
  process: { cpu_share: number | null; resident_bytes: number | null };
  rules: RuleSample[];
  groups: GroupSample[];
  /** Groups that do not fit into a sample. */
  groups_left_out?: number;
  group?: { name: string; full: boolean; members: MemberSample[]; gone?: string[] };
}
export interface Change { generation: number; revision: string; at: number; who: string | null; how: string }
export interface Alert { t: number; location: string; group: string; on: boolean }

export type AdminState = "ready" | "drain" | "maintenance";

export interface Rule { name: string; enabled: boolean; maintenance: boolean; protocol: string; listen: string[]; group: string; sni?: Record<string, string>; routed?: string[]; mirrors?: string[]; asks?: string[]; limits?: { limit: string; rate?: string; key?: string; clients: number; refused: number; lifted: number }[] }

export interface Recent { seconds: number; picks: number; failures: number; p50_ms: number | null; p99_ms: number | null }
/** Tokens of an engine, or of all engines of a group. */
export interface EngineFigures {
  prompt_tokens_per_second: number; output_tokens_per_second: number; cache_hit_rate: number | null;
  first_token_p50_ms: number | null; first_token_p90_ms: number | null; between_tokens_p50_ms: number | null; between_tokens_p90_ms: number | null;
  queued_tokens: number; queued_requests: number; streams: number; queued_tokens_elsewhere: number; requests_elsewhere: number;
}
export interface Param { name: string; value: number; unit: string }
/** A zone of a group; what is said of shares and loads is that of all zones of its rank. */
export interface Zone { name: string | null; rank: number; own: boolean; share: number; load: number | null; usable: number; members: number; requests: number }
export interface Group {
  name: string; owner: string | null; strategy: string; params: Param[]; granularity: string; adaptive: boolean; load: string; panic: boolean; maintenance?: boolean;
  alerts: number; alerts_raised: number; recent: Recent; members: Member[];
  refused: { member: string; address: string; why: string }[];
  lists?: { name: string; members: number; error: string | null; failures: number }[];
  zones?: Zone[]; engines?: EngineFigures;
}
export interface Check { age_seconds: number; error: string | null }
export interface Member {
  name: string; member: string; address: string | null; joined: boolean; location: string; state: string; reasons: string[]; ejection?: { seconds_left: number; cause: string; why: string; by: string | null; requests: number; failures: number } | null; admin: AdminState; weight: number; backup: boolean;
  effective_weight: number; max_connections: number | null; in_flight: number; cost_in_flight: number; cap: number | null; latency_ms: number | null; recent: Recent; share: number;
  totals: { requests: number; failures: number; overloads: number; cancelled: number; assigned: number };
  check: Check | null; tls: Check | null;
  opinions: { source: string; age_seconds: number; down: boolean; drain: boolean; maintenance: boolean; weight: number | null; max_connections: number | null; says: string }[];
  load: number | null; alert: boolean; engine?: EngineFigures;
}
export interface Location {
  name: string; alert: boolean; alert_setting: "auto" | "on" | "off";
  alerts: { group: string; age_seconds: number; load: number; threshold: number }[];
  loads: { id: string; value: number; age_seconds: number; expired?: boolean; first?: boolean }[];
}
export interface Explained {
  group: string; strategy: string; age_seconds: number; chosen: string | null; error: string | null; notes: string[];
  candidates: { member: string; score: number | null; verdict: string }[];
}
export interface History {
  step_seconds: number; t: number[];
  rate: (number | null)[]; failures: (number | null)[]; p50_ms: (number | null)[]; p99_ms: (number | null)[]; in_flight: (number | null)[]; queue: (number | null)[]; spread: (number | null)[];
  thresholds: { reject: number | null; critical: number | null };
  members: { name: string; load: (number | null)[]; share: (number | null)[]; in_flight: (number | null)[]; weight: (number | null)[]; alert: (boolean | null)[] }[];
}

export interface SchemaKey { name: string; alias: string | null; allowed: string; default: string | null; example: string; meaning: string }
export interface SchemaTable { header: string; meaning: string; keys: SchemaKey[] }
export interface SchemaParam { name: string; meaning: string; unit: string; integer: boolean; default: number; min: number; max: number }
export interface SchemaStrategy { name: string; meaning: string; default: boolean; params: SchemaParam[] }
export interface Schema { tables: SchemaTable[]; strategies: SchemaStrategy[] }

export type Json = null | boolean | number | string | Json[] | { [key: string]: Json };
export type Path = (string | number)[];
export type Edit = { op: "set"; path: Path; value: Json } | { op: "remove"; path: Path } | { op: "rename"; path: Path; to: string };
export interface Problem { line: number | null; column: number | null; key: string; message: string; allowed: string | string[] | null }
export interface Config {
  file: string; revision: string; generation: number; text: string;
  on_disk: { revision: string | null; differs: boolean; error: string | null; unwritable: string | null };
  values: { [key: string]: Json };
}
export interface Validated { ok: boolean; problems: Problem[]; warnings: unknown[]; needs_restart: string[] }
/** What becomes of the tables of an image, by their paths. */
export interface ImportOutcome { added: string[]; replaced: string[]; unchanged: string[]; clashes: string[] }
export interface Import { text: string; rename: Record<string, string>; replace: string[] }
export interface Diffed { ok: boolean; problems: Problem[]; warnings?: unknown[]; diff: string; changes: { path: Path; before: Json; after: Json }[]; needs_restart: string[]; revision: string; import?: ImportOutcome }
export interface Applied { revision: string; generation: number; notes: string[]; in_effect: boolean; import?: ImportOutcome }
export interface HistoryEntry { revision: string; generation: number; at: number; who: string | null; from: string | null; comment: string | null; how: string }
