// A stand-in for the balancer, for work on the console and for tests of states that are hard to reach:
//   node mock/server.mjs [--port 9900] [--scale small|20x200|10000|kubernetes|empty] [--users]
// With --balancer http://127.0.0.1:9901 it serves the pages only, and hands on all else to that balancer.
// It speaks what docs/admin-api.md says, with data that lives. With --users: operator/operator, viewer/viewer, admin/admin.
import { createServer, request as ask } from "node:http";
import { createHash } from "node:crypto";
import { existsSync, readFileSync, statSync } from "node:fs";
import { extname, join, normalize } from "node:path";
import { fileURLToPath } from "node:url";
import { parse, write } from "./toml.mjs";
import { check } from "./check.mjs";
import { generated, World, textFor } from "./world.mjs";

const here = fileURLToPath(new URL(".", import.meta.url));
const schema = JSON.parse(readFileSync(join(here, "schema.json"), "utf8"));

export const CSP =
  "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'";

const USERS = { admin: "administer", operator: "operate", viewer: "view" };
const RANK = { view: 0, operate: 1, administer: 2 };
const TYPES = { ".html": "text/html; charset=utf-8", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".json": "application/json", ".png": "image/png" };

const hash = (text) => createHash("sha256").update(text).digest("hex").slice(0, 16);
const seconds = () => Math.floor(Date.now() / 1000);

class Refused extends Error {
  constructor(status, error, detail, more = {}) {
    super(detail);
    Object.assign(this, { status, body: { error, detail, ...more } });
  }
}

export class Mock {
  constructor({ scale = "small", users = false, dist = join(here, "../dist"), warm = 600, balancer = null } = {}) {
    this.balancer = balancer;
    this.dist = dist;
    this.users = users;
    this.world = new World(schema);
    this.sessions = new Map();
    this.wrong = 0;
    this.streams = new Set();
    this.events = [];
    this.id = 1;
    this.generation = 1;
    this.history = [];
    this.audit = [];
    this.broken = false;
    // Written once, so that later changes differ in what they change only.
    this.text = write(parse(textFor(scale)).values);
    this.disk = this.text;
    this.values = parse(this.text).values;
    if (scale === "kubernetes") this.world.generated = generated();
    this.world.apply(this.values);
    this.history.unshift({ revision: hash(this.text), generation: 1, at: seconds() - 7200, who: "", from: null, comment: "", how: "start", text: this.text });
    this.world.onAlert = (alert) => this.emit("alert", alert);
    const start = seconds() - warm;
    for (let i = 0; i < warm; i++) this.world.step(start + i);
  }

  async listen(port = 0, host = "127.0.0.1") {
    this.server = createServer((request, response) => this.handle(request, response));
    await new Promise((done) => this.server.listen(port, host, done));
    this.timer = setInterval(() => this.tick(), 1000);
    this.url = `http://${host}:${this.server.address().port}`;
    return this.url;
  }

  close() {
    clearInterval(this.timer);
    for (const stream of this.streams) stream.response.destroy();
    this.server.closeAllConnections?.();
    return new Promise((done) => this.server.close(done));
  }

  tick() {
    const now = Date.now() / 1000;
    this.world.step(now);
    for (const stream of this.streams) this.send(stream, "sample", this.world.sample(now, stream), this.id);
  }

  send(stream, event, data, id) {
    stream.response.write(`event: ${event}\nid: ${id}\ndata: ${JSON.stringify(data)}\n\n`);
  }

  emit(event, data) {
    this.id++;
    this.events.push({ id: this.id, event, data });
    if (this.events.length > 200) this.events.shift();
    for (const stream of this.streams) this.send(stream, event, data, this.id);
  }

  revision() {
    return hash(this.text);
  }

  take(text, how, who, comment = "") {
    const { values, lines } = this.parsed(text);
    const problems = check(schema, values, lines);
    if (problems.length) throw new Refused(422, "bad_configuration", `${problems.length} problems in the configuration`, { problems });
    this.text = text;
    this.disk = text;
    this.values = values;
    this.world.apply(values);
    this.generation++;
    const entry = { revision: hash(text), generation: this.generation, at: seconds(), who, from: "127.0.0.1", comment, how, text };
    this.history.unshift(entry);
    this.history.length = Math.min(this.history.length, 50);
    this.emit("change", { generation: this.generation, revision: entry.revision, at: entry.at, who, how });
    return { revision: entry.revision, generation: this.generation, notes: restarts(this.history[1]?.text, text), in_effect: true };
  }

  parsed(text) {
    try {
      return parse(text);
    } catch (problem) {
      if (!problem.line) throw problem;
      throw new Refused(422, "bad_configuration", problem.message, { problems: [problem] });
    }
  }

  /** The text that a CHANGE makes. */
  changed(change) {
    if (change.import) return this.imported(change.import).text;
    if (typeof change.text === "string") return change.text;
    const values = structuredClone(this.values);
    for (const edit of change.edits ?? []) {
      const path = edit.path;
      const at = (parts) => parts.reduce((tree, part) => tree?.[part], values);
      if (edit.op === "set") {
        let tree = values;
        path.slice(0, -1).forEach((part, i) => {
          if (typeof tree[part] !== "object" || tree[part] === null) tree[part] = typeof path[i + 1] === "number" ? [] : {};
          tree = tree[part];
        });
        tree[path.at(-1)] = edit.value;
      } else if (edit.op === "remove") {
        const tree = at(path.slice(0, -1));
        if (Array.isArray(tree)) tree.splice(path.at(-1), 1);
        else if (tree) delete tree[path.at(-1)];
      } else if (edit.op === "rename") {
        const parent = at(path.slice(0, -1));
        const entries = Object.entries(parent).map(([k, v]) => [k === path.at(-1) ? edit.to : k, v]);
        Object.keys(parent).forEach((k) => delete parent[k]);
        Object.assign(parent, Object.fromEntries(entries));
        if (path[0] === "group") {
          const walk = (tree) => {
            if (!tree || typeof tree !== "object") return;
            if (tree.group === path[1]) tree.group = edit.to;
            Object.values(tree).forEach(walk);
          };
          walk(values.rule);
          walk(values.cluster);
        }
      }
    }
    return write(values);
  }

  /** What an import makes of the text. Names are changed where rules and routes have them, and nothing else is looked at. */
  imported({ text, rename = {}, replace = [] }) {
    const { values, lines } = this.parsed(text);
    const outcome = { added: [], replaced: [], unchanged: [], clashes: [] };
    const problems = [];
    const mine = structuredClone(this.values);
    const called = (path) => rename[path] ?? path.split(".").slice(1).join(".");
    for (const section of ["rule", "group", "location"])
      for (const [name, table] of Object.entries(values[section] ?? {})) {
        const was = `${section}.${name}`;
        const to = called(was);
        const path = `${section}.${to}`;
        if (section === "rule" && table.group) table.group = called(`group.${table.group}`);
        for (const route of table.routes ?? []) if (route.group) route.group = called(`group.${route.group}`);
        const known = mine[section]?.[to];
        (mine[section] ??= {})[to] = table;
        if (known === undefined) outcome.added.push(path);
        else if (JSON.stringify(known) === JSON.stringify(table)) outcome.unchanged.push(path);
        else if (replace.includes(path)) outcome.replaced.push(path);
        else {
          outcome.clashes.push(path);
          problems.push({ line: lines[was] ?? 1, column: 1, key: path, message: "there is another one here: name it in `replace`, or give it another name with `rename`", allowed: null });
        }
      }
    const rules = Object.keys(values.rule ?? {}).length;
    if (rules !== 1) problems.push({ line: 0, column: 0, key: "rule", message: `an image has one rule, this text has ${rules}`, allowed: null });
    const changes = outcome.added.length + outcome.replaced.length + outcome.clashes.length;
    return { text: changes ? write(mine) : this.text, outcome, problems };
  }

  validate(change) {
    try {
      const imported = change.import && this.imported(change.import);
      const text = this.changed(change);
      const { values, lines } = this.parsed(text);
      const problems = [...(imported?.problems ?? []), ...check(schema, values, lines)];
      return { ok: problems.length === 0, problems, warnings: [], needs_restart: restarts(this.text, text), text, values, import: imported?.outcome };
    } catch (error) {
      if (error instanceof Refused && error.body.problems) return { ok: false, problems: error.body.problems, warnings: [], needs_restart: [] };
      throw error;
    }
  }

  matches(request) {
    const given = request.headers["if-match"];
    if (!given) throw new Refused(428, "revision_needed", "send If-Match with the revision that the change is for");
    if (given.replaceAll('"', "") !== this.revision()) {
      const entry = this.history[0];
      throw new Refused(412, "changed_meanwhile", `the configuration was changed by ${entry.who || "somebody"}`, { who: entry.who, at: entry.at, revision: entry.revision });
    }
    if (this.disk !== this.text) throw new Refused(409, "file_changed", "the file differs from what is in force", { diff: diff(this.text, this.disk) });
  }

  session(request) {
    if (!this.users) return { user: null, role: "administer", csrf: null, login: false, free: true };
    const cookie = /evenkeel_session=(\w+)/.exec(request.headers.cookie ?? "")?.[1];
    const session = cookie && this.sessions.get(cookie);
    return session ? { ...session, login: true, free: false } : null;
  }

  async handle(request, response) {
    const url = new URL(request.url, "http://mock");
    const path = decodeURIComponent(url.pathname);
    const json = (status, body, headers = {}) => {
      response.writeHead(status, { "content-type": "application/json", "cache-control": "no-store", ...headers });
      response.end(JSON.stringify(body));
    };
    if (this.balancer && !/^\/($|console|login)/.test(path)) return this.handOn(request, response);
    let raw = "";
    try {
      for await (const chunk of request) raw += chunk;
      if (path.startsWith("/mock/")) return json(200, this.control(path.slice(6), raw ? JSON.parse(raw) : {}));
      if (this.broken) return request.socket.destroy();
      const session = this.session(request);
      if (path === "/") return response.writeHead(302, { location: "/console/" }).end();
      if (path.startsWith("/console") || path.startsWith("/login")) {
        if (path.startsWith("/console") && this.users && !session) return response.writeHead(302, { location: "/login/" }).end();
        return this.file(path, response);
      }
      const body = raw ? JSON.parse(raw) : {};
      if (request.method !== "GET" && !(request.headers["content-type"] ?? "").startsWith("application/json")) throw new Refused(415, "wrong_content_type", "requests that change anything must be JSON");
      const answer = await this.answer(request, response, url, path, body, session);
      if (answer !== undefined) json(200, answer?.body ?? answer, answer?.headers ?? {});
    } catch (error) {
      if (error instanceof Refused) return json(error.status, error.body, error.headers ?? {});
      console.error(error);
      json(500, { error: "broken", detail: String(error.stack ?? error) });
    }
  }

  handOn(request, response) {
    const to = new URL(request.url, this.balancer);
    const { origin, ...headers } = request.headers;
    const asked = ask(to, { method: request.method, headers: { ...headers, host: to.host } }, (answer) => {
      response.writeHead(answer.statusCode, answer.headers);
      answer.pipe(response);
    });
    asked.on("error", () => response.destroy());
    response.on("close", () => asked.destroy());
    request.pipe(asked);
  }

  file(path, response) {
    if (path === "/console" || path === "/login") return response.writeHead(302, { location: path + "/" }).end();
    const inside = path.startsWith("/console/") ? path.slice(9) || "index.html" : "login/" + (path.slice(7) || "index.html");
    const file = normalize(join(this.dist, inside));
    if (!file.startsWith(normalize(this.dist)) || !existsSync(file) || !statSync(file).isFile()) return response.writeHead(404, { "content-type": "text/plain" }).end("no such file");
    response.writeHead(200, { "content-type": TYPES[extname(file)] ?? "application/octet-stream", "content-security-policy": CSP, "x-content-type-options": "nosniff", "referrer-policy": "no-referrer" });
    response.end(readFileSync(file));
  }

  control(what, body) {
    if (what === "break") {
      this.broken = true;
      for (const stream of this.streams) stream.response.destroy();
      this.streams.clear();
    } else if (what === "heal") this.broken = false;
    else if (what === "other") this.take(body.text ?? this.text.replace(/shutdown_grace = "\d+s"/, `shutdown_grace = "${31 + (this.id % 20)}s"`), "patch", "maria", "longer grace");
    else if (what === "disk") this.disk = body.text ?? this.text + "\n# by hand\n";
    else if (what === "silent") this.world.silent = body.silent !== false;
    else if (what === "engines") this.world.engines = true;
    return { ok: true };
  }

  async answer(request, response, url, path, body, session) {
    const method = request.method;
    const is = (m, pattern) => {
      if (m !== method) return null;
      const parts = pattern.split("/");
      const given = url.pathname.split("/").map(decodeURIComponent);
      if (parts.length !== given.length) return null;
      const names = [];
      for (let i = 0; i < parts.length; i++) {
        if (parts[i].startsWith("{")) names.push(given[i]);
        else if (parts[i] !== given[i]) return null;
      }
      return names;
    };
    let n;
    if (is("GET", "/v1/session")) return session ?? { user: null, role: null, csrf: null, login: true, free: false };
    if (is("POST", "/v1/login")) {
      if (this.wrong >= 5) {
        const refused = new Refused(429, "locked_out", "too many wrong passwords: try again in 30 s");
        refused.headers = { "retry-after": "30" };
        throw refused;
      }
      if (!USERS[body.user] || body.password !== body.user) {
        this.wrong++;
        throw new Refused(401, "wrong_login", "the user or the password is wrong");
      }
      this.wrong = 0;
      const key = hash(String(Math.random()));
      const made = { user: body.user, role: USERS[body.user], csrf: hash(key) };
      this.sessions.set(key, made);
      return { body: made, headers: { "set-cookie": `evenkeel_session=${key}; HttpOnly; SameSite=Strict; Path=/` } };
    }
    if (!session) throw new Refused(401, "unauthorized", "log in first");
    const need = (role) => {
      if (RANK[session.role] < RANK[role]) throw new Refused(403, "not_allowed", `this needs the role ${role}`);
      if (session.csrf && request.headers["x-csrf-token"] !== session.csrf) throw new Refused(403, "wrong_csrf", "the field X-Csrf-Token is missing or wrong");
    };
    const who = session.user ?? "";
    const note = (status = 200) => this.audit.unshift({ at: seconds(), user: who, role: session.role, from: "127.0.0.1", method, path: url.pathname, status, what: raw(body) });
    const w = this.world;
    const group = (name) => w.groups.get(name) ?? fail404("group", name, [...w.groups.keys()]);
    const member = (g, name) => group(g).members.get(name) ?? [...group(g).members.values()].find((m) => m.address === name) ?? fail404("member", name, [...group(g).members.keys()].slice(0, 32));
    const rule = (name) => w.rules.get(name) ?? fail404("rule", name, [...w.rules.keys()]);

    if (is("POST", "/v1/logout")) {
      this.sessions.clear();
      return { body: { ok: true }, headers: { "set-cookie": "evenkeel_session=; Max-Age=0; Path=/" } };
    }
    if (is("GET", "/v1/audit")) return this.audit.slice(0, 200);
    if (is("GET", "/v1/config/schema")) return schema;
    if (is("GET", "/v1/config/file")) {
      response.writeHead(200, { "content-type": "text/plain; charset=utf-8", "content-disposition": 'attachment; filename="evenkeel.toml"' });
      response.end(this.text);
      return undefined;
    }
    if (is("GET", "/v1/config"))
      return {
        body: { file: "/etc/evenkeel/evenkeel.toml", revision: this.revision(), generation: this.generation, text: this.text, on_disk: { revision: hash(this.disk), differs: this.disk !== this.text, error: null }, values: this.values },
        headers: { etag: `"${this.revision()}"` },
      };
    if (is("POST", "/v1/config/validate")) {
      const { ok, problems, warnings, needs_restart } = this.validate(body);
      return { ok, problems, warnings, needs_restart };
    }
    if (is("POST", "/v1/config/diff")) {
      const { ok, problems, warnings, needs_restart, text, values, import: outcome } = this.validate(body);
      return { ok, problems, warnings, diff: text === undefined ? "" : diff(this.text, text), changes: values ? changes(this.values, values) : [], needs_restart, revision: this.revision(), import: outcome };
    }
    if ((n = is("GET", "/v1/config/export/{rule}/file"))) {
      const rule = this.values.rule?.[n[0]] ?? fail404("rule", n[0], Object.keys(this.values.rule ?? {}));
      const used = [rule.group, ...(rule.routes ?? []).map((route) => route.group)].filter((name) => this.values.group?.[name]);
      const group = Object.fromEntries(used.map((name) => [name, this.values.group[name]]));
      response.writeHead(200, { "content-type": "text/plain; charset=utf-8", "content-disposition": `attachment; filename="${n[0]}.toml"` });
      response.end(write({ rule: { [n[0]]: rule }, ...(used.length ? { group } : {}) }));
      return undefined;
    }
    if (is("POST", "/v1/config/import")) {
      need("administer");
      this.matches(request);
      const { text, outcome, problems } = this.imported(body);
      if (problems.length) throw new Refused(422, "bad_configuration", problems[0].message, { problems, import: outcome });
      const done = this.take(text, "put", who, body.comment ?? "");
      note();
      return { ...done, import: outcome };
    }
    if (is("PUT", "/v1/config") || is("PATCH", "/v1/config")) {
      need("administer");
      this.matches(request);
      const done = this.take(this.changed(body), method.toLowerCase(), who, body.comment ?? "");
      note();
      return done;
    }
    if (is("GET", "/v1/config/history")) return this.history.map(({ text, ...entry }) => entry);
    if ((n = is("GET", "/v1/config/history/{r}"))) {
      const entry = this.history.find((e) => e.revision === n[0]) ?? fail404("revision", n[0], []);
      return { revision: entry.revision, text: entry.text, diff: diff(entry.text, this.text) };
    }
    if (is("POST", "/v1/config/undo")) {
      need("administer");
      this.matches(request);
      const before = this.history.find((e) => e.revision !== this.revision());
      if (!before) throw new Refused(409, "nothing_to_undo", "there is no earlier configuration");
      note();
      return this.take(before.text, "undo", who);
    }
    if (is("POST", "/v1/config/restore")) {
      need("administer");
      this.matches(request);
      const entry = this.history.find((e) => e.revision === body.revision) ?? fail404("revision", body.revision, []);
      note();
      return this.take(entry.text, "restore", who);
    }
    if (is("POST", "/v1/reload")) {
      need("administer");
      const done = this.take(this.disk, "file", who);
      return { generation: done.generation, notes: done.notes };
    }
    if (is("GET", "/v1/status"))
      return {
        generation: this.generation,
        last_reload: { unix_seconds: this.history[0].at, error: null },
        needs_restart: [],
        rules: [...w.rules.values()].map(({ rate, failures, ...r }) => r),
        groups: [...w.groups.values()].map((g) => w.groupStatus(g)),
        locations: w.locations(),
        negotiator: ["127.0.0.1:8088"],
        clusters: this.clusters(),
        limits: { files: 20000, files_reserved: 822, clients: 9589, clients_open: 212, memory: 2147483648, memory_reserved: 67108864 },
      };
    if (is("GET", "/v1/rules")) return [...w.rules.values()].map(({ rate, failures, ...r }) => r);
    if (is("GET", "/v1/groups")) return [...w.groups.values()].map((g) => w.groupStatus(g));
    if ((n = is("GET", "/v1/groups/{g}"))) return w.groupStatus(group(n[0]));
    if ((n = is("GET", "/v1/groups/{g}/members/{m}"))) return w.memberStatus(member(n[0], n[1]));
    if ((n = is("GET", "/v1/groups/{g}/explain"))) {
      const client = url.searchParams.get("client");
      if (client && !/^[\d.]+$|:/.test(client)) throw new Refused(422, "bad_query", "client: invalid IP address syntax; client must be an IP address");
      return w.explain(group(n[0]), client);
    }
    if (is("GET", "/v1/locations")) return w.locations();
    if (is("GET", "/v1/clusters")) return this.clusters();
    if (is("GET", "/v1/certificates")) {
      const day = 86400;
      const certificate = (listener, names, days) => ({ listener, file: `/etc/evenkeel/${names[0]}.pem`, names, subject: `CN=${names[0]}`, issuer: "CN=Example CA", key: "ECDSA P-256", not_before: seconds() - 60 * day, not_after: seconds() + days * day, expires_in: days * day, fingerprint: hash(names[0]).repeat(4) });
      return w.groups.size ? [certificate("rule shop", ["www.example.org", "example.org"], 71), certificate("admin API", ["lb-1.example.org"], 12), certificate("negotiator", ["go.example.org"], -1)] : [];
    }
    if (is("GET", "/v1/agents"))
      return [...(w.groups.get("web")?.members.values() ?? [])].slice(0, 3).map((m, i) => ({ location: m.location, name: `web-${i + 1}`, address: `${m.location}:41022`, state: i === 2 ? "stopped" : "registered", identifier: hash(m.name), key: 1, registered_seconds: 3600.2, heard_seconds: i === 2 ? 61 : 0.4, measured_seconds: 0.4, sequence: 3618, lost: i, confirmed: true, location_known: true, servers: [{ group: "web", address: ":80", members: [m.name], state: "up", alert: m.alert }] }));
    if (is("GET", "/v1/broker")) return w.groups.size ? { listen: ["127.0.0.1:9909"], agents: 2, stopped: 1, datagrams: [{ result: "registered", count: 3 }, { result: "updated", count: 10820 }, { result: "duplicate", count: 2 }], sent: 412, unsent: 0, lost: 1, displaced: 0, forgotten: 0, receive_buffer: 425984 } : null;
    if (is("GET", "/v1/monitor")) return w.groups.size ? { locations: 2, fresh: 1, asked: 9120, answers: [{ result: "taken", count: 9118 }, { result: "old", count: 1 }], delays: [[0.001, 9100], [null, 20]], delay_seconds: 0.4 } : null;
    if (is("GET", "/v1/monitor/locations"))
      return [...(w.groups.get("api")?.members.values() ?? [])].slice(0, 2).map((m, i) => ({ location: m.location, type: "kernel", address: `${m.location}:9970`, target: 0, interval_ms: 50, state: i ? "stale" : "fresh", source: "bpf", age_seconds: i ? 4.2 : 0.03, round_trip_ms: i ? null : 0.18, asked: 4560, answered: 4559, missed: i * 12, refused: 0, failed: 0, expired: i, trouble: i ? "no answer since 4 s" : null }));
    if (is("GET", "/v1/corba"))
      return w.groups.size
        ? { listen: ["127.0.0.1:2809"], reference: "IOR:000000000000003149444c3a746161", state_problem: null, connections: 4, requests: { manager: 12, strategy: 40, unknown: 0 }, relayed: { request: 901, again: 2, failed: 0, timeout: 0 }, groups: [{ id: 1, name: "corba-1", type_id: "IDL:Shop/Orders:1.0", reference: "IOR:0102", membership: "application", properties: [{ name: "tao.lb.Strategy", value: "LeastLoaded", level: "group" }], custom_strategy: null, requests: { forwarded: 120, transient: 0 }, members: [{ location: "node-a", reference: "IOR:0a", made: false }, { location: "node-b", reference: "IOR:0b", made: true }] }], monitors: [{ location: "node-a", reference: "IOR:0c" }], alerts: [{ location: "node-a", reference: "IOR:0d", wanted: true, acknowledged: null, problem: "no answer" }] }
        : null;
    if (is("GET", "/v1/xds")) {
      const of = (type, more = {}) => ({ type, all: false, names: 1, accepted: "7a31c0de-4", pending: null, pushes: 1, nacks: 0, last_nack: null, ...more });
      const stream = (node, more) => ({ node, service: "shop", program: "envoy 1.40.0", dialect: "envoy", zone: "a", address: "10.0.9.1:41822", stream: "incremental", connected_seconds: 7000 + w.t, subscriptions: [], ...more });
      const clients = [
        stream("edge-1", { subscriptions: [of("cluster", { all: true, names: 0 }), of("endpoints", { accepted: `7a31c0de-${9 + w.t}`, pushes: 12 + w.t })] }),
        stream("edge-1", { stream: "load_reports" }),
        stream("edge-7", { address: "10.0.9.7:50112", zone: null, subscriptions: [of("endpoints", { pushes: 3, nacks: 2, last_nack: { version: "7a31c0de-9", reason: "not what I like", age_seconds: 12 + w.t } })] }),
        stream("shop-3", { program: "gRPC Go 1.85.0", dialect: "grpc", address: "10.0.9.30:33120", stream: "state_of_the_world", subscriptions: [of("listener"), of("route"), of("cluster", { accepted: "7a31c0de-12", nacks: 1, last_nack: { version: "7a31c0de-4", reason: "unknown policy", age_seconds: 900 } }), of("endpoints", { pending: "7a31c0de-30" })] }),
      ];
      return w.groups.size ? { listen: ["0.0.0.0:18000"], connections: 3, refused: 0, groups: w.groups.size, changes: 30 + w.t, load_reports: 7000 + w.t, unknown_load_reports: 0, clients } : null;
    }
    if (is("GET", "/v1/steer")) {
      const web = w.groups.get("web");
      if (!web) return [];
      const members = [...web.members.values()].map((m, i) => ({ name: m.name, member: m.address, address: m.address, state: i === 2 ? "draining" : "serving", weight: i === 2 ? 0 : 256 - 40 * i, server: `web${i + 1}`, has: i === 1 ? 100 : i === 2 ? 0 : 256 - 40 * i, note: i === 1 ? "somebody else has changed its weight" : null }));
      const one = (name, more) => ({ name, group: "web", target: "haproxy /run/haproxy.sock, backend web", dry_run: false, peer: "HAProxy 2.6.12, process 812", error: null, changes: 40 + w.t, failures: 0, restarts: 1, overridden: 1, members, others: ["legacy"], pending: [], ...more });
      return [one("edge"), one("spare", { target: "nginx /etc/nginx/web.conf", peer: null, dry_run: true, changes: 0, overridden: 0, restarts: 0, others: [], failures: 2, error: "cannot write /etc/nginx/web.conf: permission denied", pending: ["server 10.0.1.1:80 weight=256;"] })];
    }
    if (is("GET", "/v1/kubernetes")) return w.groups.size ? w.kubernetesServices() : [];
    if (is("GET", "/v1/kubernetes/kinds")) return w.groups.size ? w.kubernetesKinds() : [];
    if (is("GET", "/v1/kubernetes/controller"))
      return w.groups.size
        ? { controller: "evenkeel.org/gateway", lease: "evenkeel/evenkeel-gateway", leads: false, holder: "lb-2_00c0ffee00c0ffee", last_success: seconds() - 2, error: null, configurations: 12, refusals: 1, status_writes: 0 }
        : null;
    if (is("GET", "/v1/kubernetes/objects")) return w.groups.size ? w.kubernetesObjects() : [];
    if (is("GET", "/v1/acme")) return w.groups.size ? [{ name: "www.example.org", issued: true, next: seconds() + 40 * 86400, failures: 0, error: null }] : [];
    if (is("GET", "/v1/process")) return { pid: 4242, uptime_seconds: 7321 + w.t, cpu_seconds: 912.2, cpu_share: 0.12, resident_bytes: 61e6, open_files: 412, threads: 11, version: "0.1.0", workers: 2 };
    if (is("GET", "/v1/counters")) return this.counters();
    if (is("GET", "/v1/history")) return w.history(url.searchParams.get("group"), +(url.searchParams.get("since") ?? 0)) ?? fail404("group", url.searchParams.get("group"), []);
    if (is("GET", "/v1/events")) return this.stream(request, response, url);

    need("operate");
    if ((n = is("PUT", "/v1/groups/{g}/members/{m}/state"))) {
      const m = member(n[0], n[1]);
      if (m.admin !== "ready" && body.state === "ready") m.warm = 10;
      m.admin = body.state;
    } else if ((n = is("PUT", "/v1/groups/{g}/members/{m}/weight"))) {
      if (!(body.weight >= 0 && body.weight <= 1000)) throw new Refused(422, "bad_weight", "a weight is a number from 0 to 1000");
      member(n[0], n[1]).weight = body.weight;
    } else if ((n = is("PUT", "/v1/groups/{g}/members/{m}/backup"))) member(n[0], n[1]).backup = body.backup;
    else if ((n = is("POST", "/v1/groups/{g}/members/{m}/uneject"))) member(n[0], n[1]);
    else if ((n = is("POST", "/v1/groups/{g}/members/{m}/check"))) {
      const m = member(n[0], n[1]);
      return m.failing ? { ok: false, error: "no connection: Connection refused (os error 111)", took_ms: 0.3 } : { ok: true, error: null, took_ms: 1.2 };
    } else if ((n = is("PUT", "/v1/groups/{g}/strategy"))) {
      const kind = schema.strategies.find((s) => s.name === body.name);
      if (!kind) throw new Refused(422, "unknown_strategy", `there is no strategy ${body.name}`, { allowed: schema.strategies.map((s) => s.name) });
      for (const [name, value] of Object.entries(body.params ?? {})) {
        const p = kind.params.find((x) => x.name === name);
        if (!p || value < p.min || value > p.max) throw new Refused(422, "bad_parameter", `${name}: out of range; allowed: a number from ${p?.min} to ${p?.max}`);
      }
      Object.assign(group(n[0]), { strategy: body.name, params: body.params ?? {} });
    } else if ((n = is("PUT", "/v1/rules/{r}/enabled"))) rule(n[0]).enabled = body.enabled;
    else if ((n = is("PUT", "/v1/rules/{r}/maintenance"))) rule(n[0]).maintenance = body.on;
    else if ((n = is("PUT", "/v1/groups/{g}/maintenance"))) group(n[0]).maintenance = body.on;
    else if ((n = is("PUT", "/v1/locations/{l}/alert"))) w.alertSettings.set(n[0], body.alert);
    else if ((n = is("POST", "/v1/groups/{g}/simulate"))) return this.simulate(group(n[0]), body);
    else if (method === "POST" && /forget|query|remove$/.test(path)) void 0;
    else throw new Refused(404, "no_such_path", "there is no such path");
    note();
    return { ok: true };
  }

  clusters() {
    return Object.entries(this.values.cluster ?? {}).map(([name, c]) => ({
      name,
      group: c.group,
      hosts: [c.hosts].flat(),
      classes: ["", ...Object.keys(c.class ?? {})].map((cls) => ({ name: cls, quantum_seconds: cls ? [10, 10] : [5, 60], response_time_ms: null, max_utilization: cls ? 0.7 : null, negotiations: { redirected: 1200 + this.world.t, answered: 4, no_member: 0, response_time: 1, class_limit: cls ? 33 : 0 } })),
    }));
  }

  counters() {
    const rules = [...this.world.rules.values()];
    const family = (name, type, help, samples) => ({ name, type, help, samples });
    return [
      family("evenkeel_build_info", "gauge", "Always 1.", [{ labels: { version: "0.1.0" }, value: 1 }]),
      family("evenkeel_rule_requests_total", "counter", "HTTP requests with a valid head.", rules.map((r) => ({ labels: { rule: r.name }, value: Math.round(r.rate * this.world.t) }))),
      family("evenkeel_rule_connections_open", "gauge", "Client connections that are open.", rules.map((r) => ({ labels: { rule: r.name }, value: Math.round(r.rate / 9) }))),
      family("evenkeel_rule_moved_total", "counter", "Clients that were moved from one member to another.", rules.map((r) => ({ labels: { rule: r.name, reason: "alert" }, value: 14 }))),
      family("evenkeel_rule_ftp_data_connections_total", "counter", "Data connections that have ended.", rules.filter((r) => r.protocol === "ftp").flatMap((r) => [{ labels: { rule: r.name, kind: "passive_out" }, value: 812 }, { labels: { rule: r.name, kind: "active_out" }, value: 3 }])),
      family("evenkeel_rule_ftp_bytes_total", "counter", "Bytes of FTP rules.", rules.filter((r) => r.protocol === "ftp").map((r) => ({ labels: { rule: r.name, of: "data_out" }, value: 9.1e9 }))),
    ];
  }

  simulate(g, body) {
    if (!(body.strategies?.length >= 2)) throw new Refused(422, "bad_body", "two to four strategies");
    const members = [...g.members.values()].slice(0, 200);
    return {
      assumed: { rate: body.rate ?? Math.round(g.rate), members: members.map((m) => ({ name: m.name, mean_ms: m.ms, concurrency: 8 })), notes: ["service times are those of the last 10 minutes", "members that are down are left out"] },
      results: body.strategies.map((s, i) => ({
        strategy: s.name,
        p50_ms: 2.4 + 0.3 * i,
        p90_ms: 6 + 1.5 * i,
        p99_ms: 15 + 11 * i,
        mean_ms: 3.3 + 0.6 * i,
        failed: 0,
        queue_p99: 2 + 3 * i,
        shares: members.map((m, k) => ({ member: m.name, share: (1 + 0.3 * Math.sin(k + i)) / members.length, utilisation: 0.5 + 0.2 * Math.sin(k * 2 + i) })),
      })),
    };
  }

  stream(request, response, url) {
    response.writeHead(200, { "content-type": "text/event-stream", "cache-control": "no-store" });
    const stream = { response, group: url.searchParams.get("group"), prefix: url.searchParams.get("prefix") ?? "", known: new Map() };
    const last = +(request.headers["last-event-id"] ?? 0);
    if (last) for (const e of this.events) if (e.id > last) this.send(stream, e.event, e.data, e.id);
    this.streams.add(stream);
    response.on("close", () => this.streams.delete(stream));
    this.send(stream, "sample", this.world.sample(Date.now() / 1000, stream), this.id);
    return undefined;
  }
}

const raw = (body) => {
  const { text, ...rest } = body;
  return JSON.stringify(rest).slice(0, 200);
};

function fail404(kind, name, allowed) {
  throw new Refused(404, `unknown_${kind}`, `there is no ${kind} "${name}"`, { allowed });
}

function restarts(before, after) {
  const top = (text) => {
    try {
      const { admin, workers } = parse(text ?? "").values;
      return JSON.stringify({ admin, workers });
    } catch {
      return "";
    }
  };
  return top(before) !== top(after) ? ["[admin]: changes need a restart"] : [];
}

function changes(a, b, path = []) {
  const isTree = (v) => v && typeof v === "object" && !Array.isArray(v);
  if (isTree(a) && isTree(b)) return [...new Set([...Object.keys(a), ...Object.keys(b)])].flatMap((k) => changes(a[k], b[k], [...path, k]));
  return JSON.stringify(a) === JSON.stringify(b) ? [] : [{ path, before: a ?? null, after: b ?? null }];
}

/** A unified diff, by the longest common subsequence. */
export function diff(a, b) {
  const x = a.split("\n");
  const y = b.split("\n");
  let head = 0;
  while (head < x.length && head < y.length && x[head] === y[head]) head++;
  let tail = 0;
  while (tail < x.length - head && tail < y.length - head && x.at(-1 - tail) === y.at(-1 - tail)) tail++;
  const p = x.slice(head, x.length - tail);
  const q = y.slice(head, y.length - tail);
  if (!p.length && !q.length) return "";
  const table = Array.from({ length: p.length + 1 }, () => new Uint16Array(q.length + 1));
  for (let i = p.length - 1; i >= 0; i--) for (let j = q.length - 1; j >= 0; j--) table[i][j] = p[i] === q[j] ? table[i + 1][j + 1] + 1 : Math.max(table[i + 1][j], table[i][j + 1]);
  const lines = [];
  let i = 0;
  let j = 0;
  while (i < p.length || j < q.length) {
    if (i < p.length && j < q.length && p[i] === q[j]) (lines.push(" " + p[i]), i++, j++);
    else if (i < p.length && (j >= q.length || table[i + 1][j] >= table[i][j + 1])) lines.push("-" + p[i++]);
    else lines.push("+" + q[j++]);
  }
  const before = x.slice(Math.max(0, head - 3), head).map((l) => " " + l);
  const after = x.slice(x.length - tail, x.length - tail + 3).map((l) => " " + l);
  return [`--- in force`, `+++ changed`, `@@ -${Math.max(1, head - 2)},${before.length + p.length + after.length} +${Math.max(1, head - 2)},${before.length + q.length + after.length} @@`, ...before, ...lines, ...after, ""].join("\n");
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const option = (name, fallback) => {
    const at = process.argv.indexOf(`--${name}`);
    return at < 0 ? fallback : process.argv[at + 1];
  };
  const mock = new Mock({ scale: option("scale", "small"), users: process.argv.includes("--users"), balancer: option("balancer", null) });
  console.log(await mock.listen(+option("port", 9900)));
}
