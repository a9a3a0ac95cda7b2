// Groups, members and traffic that live: what the mock answers. All from a seeded generator, so that
// screenshots are the same from run to run but for the time.

export function random(seed) {
  let s = seed >>> 0;
  return () => {
    s = (s + 0x6d2b79f5) >>> 0;
    let t = Math.imul(s ^ (s >>> 15), 1 | s);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}

const HISTORY = 3600;

/** Most groups in a sample. */
const MOST_GROUPS = 1000;

/** What a controller makes of 5,000 routes: groups of 25 namespaces, and rules by port. */
export function generated() {
  const group = {};
  for (let i = 0; i < 5000; i++) {
    const team = String(i % 25).padStart(2, "0");
    group[`kubernetes.team-${team}.web-${String(Math.floor(i / 25)).padStart(3, "0")}.80`] = { members: [`10.${i >> 8}.${i & 255}.1:8080`, `10.${i >> 8}.${i & 255}.2:8080`] };
  }
  const routes = Object.keys(group).map((name) => ({ group: name }));
  return { group, rule: { "kubernetes.443": { listen: "0.0.0.0:443", routes }, "kubernetes.5432": { listen: "0.0.0.0:5432", protocol: "tcp", group: "kubernetes.team-07.web-000.80" } } };
}

export const SMALL = `# The shop, its API and downloads.
shutdown_grace = "30s"

[admin]
listen = "127.0.0.1:9900"

[defaults]
connection_timeout = "1s"

[rule.shop]
listen = ["0.0.0.0:8080", "[::]:8080"]
group = "web"
terminate_on_disable = false

[rule.shop.http]
retries = 1

[[rule.shop.routes]]
name = "api"
path = "/api/*"
group = "api"

[rule.api]
listen = "127.0.0.1:8090"
group = "api"
max_connections = 20000

[rule.files]
listen = "0.0.0.0:2121"
protocol = "ftp"
enabled = true
members = ["10.0.3.1:21", "10.0.3.2:21"]

[group.web]
strategy = { name = "least_loaded", reject_threshold = 0.75, critical_threshold = 0.9 }
granularity = "on_demand"
load = "cpu"
connection_failure_limit = 5
members = ["10.0.1.1:80", "10.0.1.2:80", "10.0.1.3:80", "10.0.1.4:80", "10.0.1.5:80", { address = "10.0.1.6:80", weight = 0.5, backup = true }]

[group.web.health_check]
type = "http"
interval = "2s"
path = "/healthz"
response_code = "200-299"

[group.api]
strategy = "adaptive"
members = ["10.0.2.1:9000", "10.0.2.2:9000", "10.0.2.3:9000"]

[group.api.health_check]
interval = "1s"

[cluster.shop]
group = "web"
hosts = ["www.example.org"]
quantum = { min = "5s", max = "1m" }

[cluster.shop.class.guest]
max_utilization = 0.7
quantum = "10s"
`;

function large(groups, members) {
  let text = "";
  for (let g = 1; g <= groups; g++) {
    const name = `pool-${String(g).padStart(2, "0")}`;
    text += `[rule.service-${String(g).padStart(2, "0")}]\nlisten = "0.0.0.0:${8000 + g}"\ngroup = "${name}"\n\n`;
    const list = Array.from({ length: members }, (_, m) => `"10.${g}.${m >> 8}.${m & 255}:80"`);
    text += `[group.${name}]\nstrategy = "${g % 3 ? "adaptive" : "least_loaded"}"\nmembers = [${list.join(", ")}]\n\n`;
  }
  return text;
}

export function textFor(scale) {
  if (scale === "20x200") return large(20, 200);
  if (scale === "10000") return large(10, 1000);
  if (scale === "empty") return `[admin]\nlisten = "127.0.0.1:9900"\n`;
  return SMALL;
}

export class World {
  constructor(schema, seed = 7) {
    this.schema = schema;
    this.rand = random(seed);
    this.groups = new Map();
    this.rules = new Map();
    /** What stands in no file. */
    this.generated = { group: {}, rule: {} };
    this.alertSettings = new Map();
    this.t = 0;
  }

  /** Takes over a configuration; what stays the same keeps its state. */
  apply(values) {
    const groups = new Map();
    const named = [...Object.entries(values.group ?? {}), ...Object.entries(this.generated.group)];
    for (const [name, rule] of Object.entries(values.rule ?? {})) if (rule.members) named.push([name, rule]);
    for (const [name, table] of named) {
      const old = this.groups.get(name);
      const strategy = typeof table.strategy === "object" ? table.strategy.name : (table.strategy ?? "adaptive");
      const given = typeof table.strategy === "object" ? table.strategy : {};
      const g = old ?? { name, members: new Map(), hist: this.emptyHist(), raised: 0 };
      g.strategy = strategy;
      g.params = given;
      g.granularity = table.granularity ?? "per_request";
      g.load = table.load ?? "cpu";
      g.base = old?.base ?? 300 + 900 * this.rand();
      const members = new Map();
      const before = new Map([...g.members.values()].map((m) => [m.address, m]));
      for (const item of table.members ?? []) {
        const m = typeof item === "string" ? { address: item } : item;
        const address = m.address ?? m.srv;
        const name = m.name ?? address;
        members.set(name, Object.assign(before.get(address) ?? this.member(address, m, members.size), { name }));
      }
      g.members = members;
      groups.set(name, g);
    }
    this.groups = groups;
    const rules = new Map();
    for (const [name, rule] of [...Object.entries(values.rule ?? {}), ...Object.entries(this.generated.rule)]) {
      const old = this.rules.get(name);
      rules.set(name, {
        name,
        enabled: rule.enabled ?? true,
        maintenance: rule.maintenance?.on ?? false,
        protocol: rule.protocol ?? "http",
        listen: [rule.listen ?? []].flat(),
        group: rule.group ?? (rule.members ? name : ""),
        routed: [...new Set((rule.routes ?? []).map((r) => r.group).filter(Boolean))],
        rate: old?.rate ?? 0,
        failures: 0,
      });
    }
    this.rules = rules;
    this.values = values;
  }

  member(address, table, index) {
    const r = this.rand;
    return {
      name: address,
      address,
      location: table.location ?? address.replace(/:\d+$/, ""),
      weight: table.weight ?? 1,
      backup: table.backup ?? false,
      admin: table.drain ? "drain" : "ready",
      ms: 2 + 6 * r(),
      load: 0.3 + 0.2 * r(),
      pull: 0.35 + 0.3 * r(),
      phase: 6.28 * r(),
      failing: false,
      index,
      in_flight: 0,
      rate: 0,
      failures: 0,
      share: 0,
      alert: false,
      requests: Math.floor(1e5 * r()),
      failed: 0,
      hist: { load: [], share: [], in_flight: [], weight: [], alert: [] },
    };
  }

  emptyHist() {
    return { t: [], rate: [], failures: [], p50_ms: [], p99_ms: [], in_flight: [], queue: [], spread: [] };
  }

  state(m) {
    if (m.admin === "maintenance") return ["maintenance", ["maintenance"]];
    if (m.admin === "drain") return ["draining", ["draining"]];
    if (m.failing) return ["down", ["down"]];
    if (m.warm > 0) return ["warming", []];
    if (m.alert) return ["shedding", ["shedding"]];
    if (m.backup) return ["standby", []];
    return ["up", []];
  }

  /** One second. */
  step(now) {
    this.t++;
    let first = true;
    for (const g of this.groups.values()) {
      const members = [...g.members.values()];
      const big = members.length > 50;
      const wave = 1 + 0.25 * Math.sin(this.t / 40) + 0.1 * (this.rand() - 0.5);
      g.rate = g.base * wave * (big ? 20 : 1);
      let sum = 0;
      for (const m of members) {
        m.failing = first && m.index === 3;
        if (m.warm > 0) m.warm--;
        const [state] = this.state(m);
        m.ok = state === "up" || state === "warming" || state === "shedding";
        m.eff = m.ok && state !== "shedding" ? m.weight * (m.warm > 0 ? 0.4 : 1) : 0;
        sum += m.eff * (1 / (0.3 + m.load));
      }
      let failed = 0;
      let flight = 0;
      for (const m of members) {
        m.share = sum > 0 ? (m.eff * (1 / (0.3 + m.load))) / sum : 0;
        m.rate = g.rate * m.share;
        const hot = first && m.index === 1;
        const target = hot ? 0.83 + 0.13 * Math.sin(this.t / 25) : m.pull + 0.1 * Math.sin(this.t / 20 + m.phase);
        m.load = Math.min(1, Math.max(0.02, m.load + 0.15 * (target - m.load) + 0.02 * (this.rand() - 0.5)));
        if (hot) m.alert = m.alert ? m.load > 0.82 : m.load > 0.9;
        m.in_flight = Math.round((m.rate * m.ms) / 1000 + 2 * this.rand() * (m.rate > 0 ? 1 : 0));
        m.fail = m.failing ? 0 : m.index === 2 && first ? 0.004 : 0;
        failed += m.rate * m.fail;
        m.requests += Math.round(m.rate);
        m.failed += Math.round(m.rate * m.fail);
        flight += m.in_flight;
        if (hot && m.alert !== m.was) {
          m.was = m.alert;
          if (m.alert) g.raised++;
          this.onAlert?.({ t: now, location: m.location, group: g.name, on: m.alert });
        }
      }
      g.failures = g.rate > 0 ? failed / g.rate : 0;
      g.p50 = 2.4 + 0.6 * Math.sin(this.t / 33) + 0.2 * this.rand();
      g.p99 = 14 + 5 * Math.sin(this.t / 21) + 5 * this.rand();
      g.in_flight = flight;
      g.queue = first ? Math.max(0, Math.round(6 * Math.sin(this.t / 18) - 2)) : 0;
      const mean = members.reduce((a, m) => a + m.load, 0) / Math.max(1, members.length);
      g.spread = members.length ? Math.sqrt(members.reduce((a, m) => a + (m.load - mean) ** 2, 0) / members.length) : null;
      this.remember(g, now, big);
      first = false;
    }
    for (const r of this.rules.values()) {
      const g = this.groups.get(r.group);
      const on = r.enabled && !r.maintenance;
      r.rate = on && g ? g.rate * (r.routed.length ? 0.7 : r.name === r.group ? 1 : 0.6) : 0;
      r.failures = on && g ? g.failures : 0;
    }
  }

  remember(g, now, big) {
    const h = g.hist;
    const push = (list, value) => {
      list.push(value);
      if (list.length > (big ? 300 : HISTORY)) list.shift();
    };
    push(h.t, now);
    push(h.rate, g.rate);
    push(h.failures, g.failures);
    push(h.p50_ms, g.p50);
    push(h.p99_ms, g.p99);
    push(h.in_flight, g.in_flight);
    push(h.queue, g.queue);
    push(h.spread, g.spread);
    for (const m of g.members.values()) {
      push(m.hist.load, m.load);
      push(m.hist.share, m.share);
      push(m.hist.in_flight, m.in_flight);
      push(m.hist.weight, m.eff);
      push(m.hist.alert, m.alert);
    }
  }

  thresholds(g) {
    return { reject: g.params.reject_threshold || null, critical: g.params.critical_threshold || null };
  }

  sample(now, { group: groupName, prefix, known }) {
    const chosen = [...this.groups.values()].filter((g) => g.name.startsWith(prefix));
    const groups = chosen.slice(0, MOST_GROUPS).map((g) => {
      const members = [...g.members.values()];
      return {
        name: g.name,
        rate: g.rate,
        failures: g.failures,
        p50_ms: g.p50,
        p99_ms: g.p99,
        in_flight: g.in_flight,
        queue: g.queue,
        up: members.filter((m) => m.ok || (m.backup && m.admin === "ready")).length,
        members: members.length,
        panic: false,
        alerts: members.filter((m) => m.alert).length,
        spread: g.spread,
      };
    });
    const sample = {
      t: now,
      process: { cpu_share: 0.12 + 0.03 * Math.sin(this.t / 9), resident_bytes: 61e6 + 2e6 * Math.sin(this.t / 50) },
      rules: [...this.rules.values()].map(({ name, enabled, maintenance, rate, failures, group }) => ({ name, enabled, maintenance, rate, failures, group })),
      groups,
      groups_left_out: chosen.length - groups.length,
    };
    const g = groupName && this.groups.get(groupName);
    if (g && groups.some((group) => group.name === groupName)) {
      const members = [];
      const seen = new Set();
      for (const m of g.members.values()) {
        const live = this.live(m);
        seen.add(m.name);
        const text = JSON.stringify(live);
        if (known.get(m.name) !== text) {
          known.set(m.name, text);
          members.push(live);
        }
      }
      const gone = [...known.keys()].filter((name) => !seen.has(name));
      gone.forEach((name) => known.delete(name));
      sample.group = { name: g.name, full: members.length === g.members.size, members, ...(gone.length ? { gone } : {}) };
    }
    return sample;
  }

  live(m) {
    const round = (x) => Math.round(x * 1000) / 1000;
    return {
      name: m.name,
      state: this.state(m)[0],
      admin: m.admin,
      weight: m.weight,
      effective_weight: m.eff ?? 0,
      share: round(m.share),
      rate: Math.round(m.rate),
      failures: round(m.fail ?? 0),
      in_flight: m.in_flight,
      p50_ms: m.rate > 0 ? round(m.ms / 2) : null,
      p99_ms: m.rate > 0 ? round(m.ms * 4) : null,
      load: this.silent ? null : round(m.load),
      alert: m.alert,
    };
  }

  history(groupName, since) {
    if (!groupName) {
      const all = [...this.groups.values()];
      const h = all[0]?.hist ?? this.emptyHist();
      const from = Math.max(0, h.t.findIndex((t) => t >= since));
      const sum = (key) => h.t.slice(from).map((_, i) => all.reduce((a, g) => a + (g.hist[key][from + i] ?? 0), 0));
      return { step_seconds: 1, t: h.t.slice(from), rate: sum("rate"), failures: h.failures.slice(from), p50_ms: h.p50_ms.slice(from), p99_ms: h.p99_ms.slice(from), in_flight: sum("in_flight"), queue: sum("queue"), spread: h.spread.slice(from), thresholds: { reject: null, critical: null }, members: [] };
    }
    const g = this.groups.get(groupName);
    if (!g) return null;
    const from = Math.max(0, g.hist.t.findIndex((t) => t >= since));
    const cut = Object.fromEntries(Object.entries(g.hist).map(([k, list]) => [k, list.slice(from)]));
    const members = [...g.members.values()].map((m) => {
      const pad = (list) => Array(Math.max(0, g.hist.t.length - list.length)).fill(null).concat(list).slice(from);
      return { name: m.name, load: pad(this.silent ? m.hist.load.map(() => null) : m.hist.load), share: pad(m.hist.share), in_flight: pad(m.hist.in_flight), weight: pad(m.hist.weight), alert: pad(m.hist.alert) };
    });
    return { step_seconds: 1, ...cut, thresholds: this.thresholds(g), members };
  }

  groupStatus(g) {
    const kind = this.schema.strategies.find((s) => s.name === g.strategy);
    return {
      name: g.name,
      owner: null,
      strategy: g.strategy,
      params: (kind?.params ?? []).map((p) => ({ name: p.name, value: g.params[p.name] ?? p.default, unit: p.unit })),
      granularity: g.granularity,
      adaptive: true,
      load: g.load,
      panic: false,
      ...(g.maintenance ? { maintenance: true } : {}),
      alerts: [...g.members.values()].filter((m) => m.alert).length,
      alerts_raised: g.raised,
      recent: { seconds: 10, picks: Math.round(g.rate * 10), failures: Math.round(g.rate * g.failures * 10), p50_ms: g.p50, p99_ms: g.p99 },
      members: [...g.members.values()].map((m) => this.memberStatus(m)),
      refused: [],
      ...(g.name === "web" && g.members.size < 20 ? { zones: this.zones(g) } : {}),
      ...(this.engines ? { engines: this.engineFigures([...g.members.values()]) } : {}),
    };
  }

  /** Tokens of engines, as if each request had 400 tokens of prompt and 50 of answer. A member without requests has told no usage. */
  engineFigures(members) {
    const sum = members.reduce((all, m) => all + m.rate, 0);
    const told = members.length > 1 || members[0].share > 0;
    return { prompt_tokens_per_second: sum * 400, output_tokens_per_second: sum * 50, cache_hit_rate: told ? 0.625 : null, first_token_p50_ms: 180, first_token_p90_ms: 740, between_tokens_p50_ms: 21.5, between_tokens_p90_ms: sum > 0 ? 33 : null, queued_tokens: 12_345.4 * members.length, queued_requests: 2 * members.length, streams: 7 * members.length, queued_tokens_elsewhere: 4_321 * members.length, requests_elsewhere: 3 * members.length };
  }

  /** The first half of the members is in the balancer's zone, which has a third too much to do; the others are in two. */
  zones(g) {
    const half = Math.ceil(g.members.size / 2);
    const zone = (name, rank, share, members) => ({ name, rank, own: rank === 0, share, load: rank === 0 ? 0.82 : 0.31, usable: rank === 0 ? 0.75 : 1, members, requests: Math.round(g.base * this.t * share) });
    return [zone("a", 0, 0.75, half), zone("b", 1, 0.25, g.members.size - half - 1), zone(null, 1, 0.25, 1)];
  }

  memberStatus(m) {
    const [state, reasons] = this.state(m);
    return {
      name: m.name,
      member: m.address,
      address: m.address,
      joined: false,
      location: m.location,
      state,
      reasons,
      admin: m.admin,
      weight: m.weight,
      backup: m.backup,
      effective_weight: m.eff ?? 0,
      max_connections: null,
      in_flight: m.in_flight,
      cost_in_flight: m.in_flight,
      cap: null,
      latency_ms: m.ms,
      recent: { seconds: 10, picks: Math.round(m.rate * 10), failures: Math.round(m.rate * (m.fail ?? 0) * 10), p50_ms: m.rate ? m.ms / 2 : null, p99_ms: m.rate ? m.ms * 4 : null },
      share: m.share,
      totals: { requests: m.requests, failures: m.failed, overloads: 0, cancelled: 3, assigned: 0 },
      check: { age_seconds: this.t % 2 ? 0.4 : 1.4, error: m.failing ? "no connection: Connection refused (os error 111)" : null },
      tls: null,
      opinions: m.failing ? [{ source: "health_check", age_seconds: 12, down: true, dead: false, drain: false, maintenance: false, weight: null, max_connections: null, says: "down" }] : [],
      load: m.load,
      alert: m.alert,
      ...(this.engines ? { engine: this.engineFigures([m]) } : {}),
    };
  }

  /** Namespace and name of each service: of generated groups, or of a small cluster. */
  services() {
    const names = Object.keys(this.generated.group).map((name) => name.split(".").slice(1, 3));
    return names.length ? names : [["shop", "web"], ["shop", "api"], ["media", "files"]];
  }

  kubernetesServices() {
    return this.services().map(([namespace, name], i) => ({
      service: `${namespace}/${name}`, server: "10.96.0.1:443", watching: i !== 1, version: String(81_000 + i), slices: 1,
      ports: [{ port: "80", members: 2 + (i % 3), draining: i === 0 ? 1 : 0, error: i === 1 ? "the service has no port 80" : null }],
      last_success: Math.floor(Date.now() / 1000) - (i % 5), error: null, failures: i === 1 ? 3 : 0, lists: 1, watches: 2, events: this.t,
    }));
  }

  kubernetesKinds() {
    const kind = (kind, objects, more = {}) => ({ kind, version: "v1", objects, last_success: Math.floor(Date.now() / 1000) - 1, error: null, failures: 0, lists: 1, ...more });
    return [kind("GatewayClass", 1), kind("Gateway", 1), kind("HTTPRoute", this.services().length), kind("TLSRoute", 0, { version: null }), kind("Secret", 0, { error: "secrets is forbidden", failures: 12 })];
  }

  /** Each seventh route leads to a service that is missing. */
  kubernetesObjects() {
    const routes = this.services().map(([namespace, name], i) => ({
      kind: "HTTPRoute", namespace, name, attached_to: ["infra/front"],
      problems: i % 7 === 1 ? [{ reason: "RefsNotResolved", message: `BackendNotFound: there is no Service ${namespace}/${name}; create it` }] : [],
    }));
    const front = { kind: "Gateway", namespace: "infra", name: "front", addresses: ["192.0.2.10"], routes: routes.length, problems: [{ reason: "RefsNotResolved", message: "listener https: InvalidCertificateRef: there is no Secret infra/edge of type kubernetes.io/tls; create it" }] };
    return [{ kind: "GatewayClass", namespace: "", name: "evenkeel", problems: [] }, front, ...routes, { kind: "EvenkeelPolicy", namespace: this.services()[0][0], name: "web", attached_to: [this.services()[0].join("/")], problems: [] }];
  }

  locations() {
    const seen = new Map();
    for (const g of this.groups.values())
      for (const m of g.members.values())
        if (!seen.has(m.location))
          seen.set(m.location, {
            name: m.location,
            alert: m.alert,
            alert_setting: this.alertSettings.get(m.location) ?? "auto",
            alerts: m.alert ? [{ group: g.name, age_seconds: 12.5, load: m.load, threshold: this.thresholds(g).critical ?? 0.9 }] : [],
            loads: [
              { id: "cpu", value: m.load, age_seconds: 0.4, expired: false, first: true },
              { id: "memory", value: 0.4 + m.load / 5, age_seconds: 0.4, expired: false, first: false },
              ...(m.index % 3 === 0 ? [{ id: "run_queue", value: m.load * 3, age_seconds: m.failing ? 44 : 0.1, expired: m.failing, first: false }] : []),
            ],
          });
    return [...seen.values()];
  }

  explain(g, client) {
    const members = [...g.members.values()];
    const usable = members.filter((m) => m.eff > 0).sort((a, b) => a.load - b.load);
    const out = members.filter((m) => !(m.eff > 0));
    const take = (age, list) => ({
      group: g.name,
      strategy: g.strategy,
      age_seconds: age,
      chosen: list[0]?.name ?? null,
      error: list.length ? null : "no member of the group may be used",
      notes: client ? [`for client ${client}`] : [],
      candidates: [
        ...list.slice(0, 32).map((m) => ({ member: m.name, score: m.load, verdict: `effective load ${m.load.toFixed(2)}, in flight ${m.in_flight}, weight ${m.weight}` })),
        ...out.slice(0, 32).map((m) => ({ member: m.name, score: null, verdict: `not eligible: ${this.state(m)[1].join(", ") || this.state(m)[0]}` })),
      ],
    });
    return { last: take(0.2, usable), next: take(0.00002, usable) };
  }
}
