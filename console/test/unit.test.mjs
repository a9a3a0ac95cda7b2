// The parts that compute: without a browser. Vite compiles them as it does for the page.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { after, before, test } from "node:test";
import { createServer } from "vite";
import { check } from "../mock/check.mjs";
import { parse, write } from "../mock/toml.mjs";

const schema = JSON.parse(readFileSync(new URL("../mock/schema.json", import.meta.url), "utf8"));
let vite;
let api, format, kinds, draft, live, choices, namespaces;

before(async () => {
  vite = await createServer({ root: new URL("..", import.meta.url).pathname, configFile: false, server: { middlewareMode: true, ws: false, watch: null }, appType: "custom", logLevel: "error", optimizeDeps: { noDiscovery: true, include: [] }, oxc: { jsx: { runtime: "automatic", importSource: "preact" } } });
  const load = (path) => vite.ssrLoadModule(path);
  globalThis.window ??= { addEventListener() {} };
  [api, format, kinds, draft, live, choices, namespaces] = [await load("/src/api.ts"), await load("/src/format.ts"), await load("/src/config/kinds.ts"), await load("/src/config/draft.ts"), await load("/src/live.ts"), await load("/src/config/choices.ts"), await load("/src/namespaces.ts")];
});

after(() => vite.close());

test("a message that begins with a path or a key has no capital", () => {
  assert.equal(api.sentence("the file cannot be written"), "The file cannot be written");
  for (const text of ["etc/evenkeel.toml cannot be written", "evenkeel.toml cannot be read", "rule.web.listen: not an address", "127.0.0.1:80 is taken"]) assert.equal(api.sentence(text), text);
});

test("groups and rules of a namespace", () => {
  const { groupsOf, isIn, listNamespaces, namespaceOf, narrow, OUTSIDE, prefixOf } = namespaces;
  for (const [group, wanted] of [["kubernetes.shop.web.80", "shop"], ["kubernetes.shop.llama.pool", "shop"], ["kubernetes.nobody", null], ["web", null], ["other.kubernetes.shop.web", null]]) assert.equal(namespaceOf(group), wanted, group);
  assert.deepEqual(listNamespaces(["kubernetes.b.x.80", "web", "kubernetes.a.x.80", "kubernetes.b.y.80"]), ["a", "b"]);
  assert.deepEqual(["shop", "", OUTSIDE, null].map(prefixOf), ["kubernetes.shop.", null, null, null]);
  // The name of a namespace may begin with another one.
  assert.ok(isIn("kubernetes.shop.web.80", "shop") && !isIn("kubernetes.shop-2.web.80", "shop"));
  const rules = [{ name: "kubernetes.80", group: "" }, { name: "kubernetes.81", group: "kubernetes.b.x.80" }, { name: "web", group: "web" }];
  const known = [{ name: "kubernetes.80", group: "", routed: ["kubernetes.a.x.80", "kubernetes.b.x.80"] }];
  const sample = { rules, groups: ["kubernetes.a.x.80", "kubernetes.b.x.80", "web"].map((name) => ({ name })) };
  const names = (chosen) => {
    const { rules, groups } = narrow(sample, known, chosen);
    return [rules.map((rule) => rule.name), groups.map((group) => group.name)];
  };
  assert.equal(narrow(sample, known, ""), sample);
  assert.deepEqual(names("a"), [["kubernetes.80"], ["kubernetes.a.x.80"]]);
  assert.deepEqual(names("b"), [["kubernetes.80", "kubernetes.81"], ["kubernetes.b.x.80"]]);
  assert.deepEqual(names(OUTSIDE), [["web"], ["web"]]);
  assert.deepEqual(names("gone"), [[], []]);
  assert.deepEqual(groupsOf({ group: "web" }, { routed: ["web", "api"], sni: { "a.example": "tls" } }), ["web", "api", "tls"]);
});

test("numbers keep their digits and have units", () => {
  assert.equal(format.short(0), "0");
  assert.equal(format.short(1.234), "1.23");
  assert.equal(format.short(9999), "9999");
  assert.equal(format.short(12345), "12.3 k");
  assert.equal(format.short(null), "–");
  assert.equal(format.ms(0.25), "250 µs");
  assert.equal(format.ms(1500), "1.50 s");
  assert.equal(format.percent(0.034), "3.4 %");
  assert.equal(format.percent(0), "0 %");
  assert.equal(format.bytes(61e6), "61.0 MB");
  assert.equal(format.duration(3700), "1 h 1 min");
  assert.equal(format.duration(0.4), "400 ms");
  assert.equal(format.duration(-90), "-1 min 30 s");
  assert.equal(format.bound(1e12), "1e12");
  // Scores are compared by eye.
  assert.equal(format.score(7.58e-4), "0.000758");
  assert.equal(format.score(0.006), "0.00600");
  assert.equal(format.score(12.34), "12.3");
  assert.equal(format.score(1234.5), "1235");
  assert.equal(format.score(0), "0.000");
  assert.equal(format.score(null), "–");
});

const keyOf = (header, name) => schema.tables.find((table) => table.header === header).keys.find((key) => key.name === name);
const spec = (header, name, path) => kinds.specOf(schema, keyOf(header, name), path);

test("each key of the schema has a field", () => {
  for (const table of schema.tables)
    for (const key of table.keys) {
      const path = table.header.replace(/^\[+|\]+$/g, "").split(".").filter(Boolean).concat(key.name);
      const found = kinds.specOf(schema, key, path);
      assert.ok(found.kind.type, `${table.header} ${key.name}`);
      if (/^a table/.test(key.allowed) && !/of names|of loads/.test(key.allowed)) assert.equal(found.kind.type, "table", `${table.header} ${key.name}: ${key.allowed}`);
    }
});

test("kinds are read from the words of the schema", () => {
  assert.deepEqual(spec("[rule.NAME]", "protocol", ["rule", "x", "protocol"]).kind, { type: "choice", options: ["http", "tcp", "ftp"] });
  assert.deepEqual(spec("[rule.NAME]", "connect_retries", ["rule", "x", "connect_retries"]).kind, { type: "number", integer: true, min: 0, max: 10, unit: "retries" });
  assert.equal(spec("[rule.NAME]", "listen", ["rule", "x", "listen"]).list, true);
  assert.equal(spec("[group.NAME]", "strategy", ["group", "x", "strategy"]).kind.type, "strategy");
  assert.equal(spec("[group.NAME]", "members", ["group", "x", "members"]).kind.type, "members");
  assert.equal(spec("[group.NAME]", "load", ["group", "x", "load"]).kind.suggest[0], "cpu");
  assert.deepEqual(spec("[rule.NAME]", "sni", ["rule", "x", "sni"]).kind, { type: "map", value: "the name of a group", numeric: false });
  const check = spec("[group.NAME]", "health_check", ["group", "x", "health_check"]);
  assert.equal(check.kind.header, "[group.NAME.health_check]");
  assert.equal(check.kind.toggle, true);
});

test("tables that stand in several places are found", () => {
  const at = (...path) => kinds.tableAt(schema, path)?.header;
  assert.equal(at("rule", "a.b", "routes", 0, "mirror"), "[rule.NAME.http.mirror]");
  assert.equal(at("rule", "x", "routes", 2, "response_fields"), "[rule.NAME.routes.request_fields]");
  assert.equal(at("rule", "x", "response_fields"), "[rule.NAME.routes.request_fields]");
  assert.equal(at("group", "x", "response_fields"), "[rule.NAME.routes.request_fields]");
  assert.equal(at("defaults", "response_fields"), "[rule.NAME.routes.request_fields]");
  assert.equal(at("group", "x", "maintenance"), "[rule.NAME.maintenance]");
  assert.equal(at("rule", "x", "routes", 0, "maintenance"), "[rule.NAME.maintenance]");
  assert.equal(at("rule", "x", "health_check"), "[group.NAME.health_check]");
  assert.equal(at("defaults", "http"), "[rule.NAME.http]");
  assert.equal(at("defaults", "health_check"), "[group.NAME.health_check]");
  assert.equal(at("negotiator", "tls"), "[rule.NAME.tls]");
  assert.equal(at("admin", "tls", "client_certificates"), "[rule.NAME.tls.client_certificates]");
  assert.equal(at("location", "m", "monitor"), "[group.NAME.monitor]");
  assert.equal(at("cluster", "s", "class", "guest"), "[cluster.NAME.class.CLASS]");
  assert.equal(at("corba", "groups"), "[group.NAME]");
  assert.equal(at("group", "g", "members", 3), "[[group.NAME.members]]");
});

test("what is typed becomes a value", () => {
  assert.equal(kinds.typedValue("", false), undefined);
  assert.equal(kinds.typedValue("12", true), 12);
  assert.equal(kinds.typedValue("12", false), "12");
  assert.equal(kinds.typedValue("12 s", true), "12 s");
  assert.equal(kinds.typedValue("false", false), false);
  assert.equal(kinds.keyText(["rule", "web", "routes", 0, "path"]), "rule.web.routes[0].path");
  assert.equal(kinds.sameKey('rule."a.b".routes.0.path'), "rule.a.b.routes[0].path");
});

test("a change of a change replaces it, and one back removes it", () => {
  const tree = { group: { web: { load: "cpu", members: ["a", "b"] } } };
  const path = ["group", "web", "load"];
  let edits = draft.merged([], path, "m", tree);
  edits = draft.merged(edits, path, "memory", tree);
  assert.deepEqual(edits, [{ op: "set", path, value: "memory" }]);
  assert.deepEqual(draft.merged(edits, path, "cpu", tree), []);
  assert.deepEqual(draft.merged([], path, undefined, tree), [{ op: "remove", path }]);
  // Within what was created as a whole there is still one edit.
  edits = draft.merged([], ["rule", "new"], { listen: "" }, tree);
  edits = draft.merged(edits, ["rule", "new", "listen"], "127.0.0.1:1", tree);
  edits = draft.merged(edits, ["rule", "new", "http", "retries"], 1, tree);
  assert.deepEqual(edits, [{ op: "set", path: ["rule", "new"], value: { listen: "127.0.0.1:1", http: { retries: 1 } } }]);
  // After something has moved, nothing before it is touched.
  edits = [{ op: "set", path: ["group", "web", "members", 1], value: "c" }, { op: "remove", path: ["group", "web", "members", 0] }];
  edits = draft.merged(edits, ["group", "web", "members", 0], "d", tree);
  assert.deepEqual(draft.applied(tree, edits), { group: { web: { load: "cpu", members: ["d"] } } });
});

test("only what a new rule says is changed", () => {
  draft.base.value = { values: { rule: { old: { listen: "a" } } } };
  draft.edits.value = [{ op: "set", path: ["rule", "new"], value: { listen: "b" } }, { op: "set", path: ["rule", "old", "cost"], value: 2 }];
  const changed = (...path) => draft.changedBelow(path);
  assert.deepEqual([changed("rule", "new"), changed("rule", "new", "listen"), changed("rule", "new", "protocol")], [true, true, false]);
  assert.deepEqual([changed("rule", "old"), changed("rule", "old", "cost"), changed("rule", "old", "listen")], [true, true, false]);
  draft.discard();
  draft.base.value = null;
});

test("edits are shown as the balancer applies them", () => {
  const tree = { rule: { shop: { group: "web", routes: [{ group: "web" }, { groups: { web: 1 } }] } }, group: { web: {}, api: {} } };
  const renamed = draft.applied(tree, [{ op: "rename", path: ["group", "web"], to: "front" }]);
  assert.deepEqual(Object.keys(renamed.group), ["front", "api"]);
  assert.equal(renamed.rule.shop.group, "front");
  assert.deepEqual(renamed.rule.shop.routes, [{ group: "front" }, { groups: { front: 1 } }]);
  assert.equal(tree.rule.shop.group, "web", "the revision in force is not touched");
});

test("a stream is taken apart however it is cut", () => {
  const text = ': comment\nid: 7\nevent: sample\ndata: {"a":\ndata: 1}\n\nevent: alert\r\ndata:x\r\n\r\n';
  for (let cut = 1; cut < text.length; cut++) {
    const seen = [];
    const ids = [];
    const lines = new live.Lines((event, data) => seen.push([event, data]), (id) => ids.push(id));
    lines.add(text.slice(0, cut));
    lines.add(text.slice(cut));
    assert.deepEqual(seen, [["sample", '{"a":\n1}'], ["alert", "x"]]);
    assert.deepEqual(ids, ["7"]);
  }
});

test("the mock reads what it writes, and finds problems by their keys", () => {
  const values = { shutdown_grace: "30s", rule: { "a.b": { listen: ["127.0.0.1:1"], members: ["h:1", { address: "h:2", weight: 2 }], routes: [{ path: "/x" }] } } };
  assert.deepEqual(parse(write(values)).values, values);
  const { values: wrong, lines } = parse('[rule.web]\nlisten = "127.0.0.1:1"\nmembers = ["h:1"]\nconnect_retries = 99\nnonsense = 1\n');
  assert.deepEqual(check(schema, wrong, lines).map((problem) => [problem.line, problem.key]), [[4, "rule.web.connect_retries"], [5, "rule.web.nonsense"]]);
});

test("tables of an image that differ are asked about until they have another name", () => {
  assert.deepEqual(choices.asked(["rule.web", "group.pool"], {}), ["rule.web", "group.pool"]);
  const some = { "group.pool": { how: "rename", to: "other" }, "rule.web": { how: "replace" } };
  // The new name may be taken as well: that is told as a problem, and asked at its field.
  assert.deepEqual(choices.asked(["group.other", "location.a"], some), ["group.pool", "rule.web", "location.a"]);
  assert.deepEqual(choices.importOf("x", some), { text: "x", rename: { "group.pool": "other" }, replace: ["rule.web"] });
  assert.deepEqual(choices.importOf("x", { "group.pool": { how: "rename", to: "" } }), { text: "x", rename: {}, replace: [] });
});
