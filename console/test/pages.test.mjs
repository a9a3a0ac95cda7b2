// The pages in a browser. Against the mock, or against a running balancer whose address is in CONSOLE_URL
// (with users: CONSOLE_USER and CONSOLE_PASSWORD). SCREENSHOTS=1 keeps a picture of each page.
import assert from "node:assert/strict";
import { mkdirSync, readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { after, before, test } from "node:test";
import { Mock } from "../mock/server.mjs";
import { launch } from "./browser.mjs";

const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const REAL = process.env.CONSOLE_URL;
const SHOTS = new URL("../screenshots/", import.meta.url).pathname;
const onlyMock = REAL ? "needs a state that only the mock gets into" : false;
const PHONE = { width: 360, height: 740 };
const DESKTOP = { width: 1440, height: 900 };

let mock, base, browser, page, group, rule, member;
const refused = [];
const broken = [];

before(async () => {
  if (REAL) base = REAL.replace(/\/$/, "");
  else {
    mock = new Mock();
    base = await mock.listen();
  }
  browser = await launch();
  page = browser.context.pages()[0] ?? (await browser.context.newPage());
  watch(page);
  await page.goto(`${base}/console/`);
  await page.waitForSelector(".link.live, #user", { state: "attached" });
  if (process.env.CONSOLE_USER && (await page.locator("#user").count())) {
    await page.fill("#user", process.env.CONSOLE_USER);
    await page.fill("#password", process.env.CONSOLE_PASSWORD);
    await page.click("button");
  }
  await page.waitForSelector(".link.live", { state: "attached" });
  const groups = await api("GET", "/v1/groups");
  const rules = await api("GET", "/v1/rules");
  const known = groups.find((item) => item.members.length > 1) ?? groups[0];
  group = known.name;
  member = known.members[0].name;
  rule = (rules.find((item) => item.group === group) ?? rules[0]).name;
  if (process.env.SCREENSHOTS) mkdirSync(SHOTS, { recursive: true });
});

after(async () => {
  await browser?.close();
  await mock?.close();
});

/** Listens for what the content security policy refuses, and for errors of the page. */
function watch(page) {
  page.on("console", (message) => {
    const text = message.text();
    if (/content security policy/i.test(text)) refused.push(text);
  });
  page.on("pageerror", (error) => broken.push(String(error.stack ?? error)));
  void page.addInitScript(() => {
    window.refused = [];
    document.addEventListener("securitypolicyviolation", (event) => window.refused.push(`${event.violatedDirective} ${event.blockedURI} ${event.sourceFile}:${event.lineNumber}`));
  });
}

/** A question to the API with the session of the page. */
function api(method, path, body) {
  return page.evaluate(
    async ([method, path, body]) => {
      const headers = {};
      if (method !== "GET") {
        headers["Content-Type"] = "application/json";
        const session = await (await fetch("/v1/session")).json();
        if (session.csrf) headers["X-Csrf-Token"] = session.csrf;
      }
      const answer = await fetch(path, { method, headers, ...(body === undefined ? {} : { body: JSON.stringify(body) }) });
      return answer.json();
    },
    [method, path, body],
  );
}

const PAGES = () => [
  ["overview", "#/", ".flow .node"],
  ["groups", "#/groups", "table .spark"],
  ["group", `#/groups/${group}`, ".virtual tbody tr"],
  ["group-explain", `#/groups/${group}/explain`, "text=Now, for the next request"],
  ["group-strategy", `#/groups/${group}/strategy`, "#strategy"],
  ["member", `#/groups/${group}?member=${encodeURIComponent(member)}`, "dialog .props"],
  ["monitor-locations", "#/monitor/locations", "#tab-panel .panel table, #tab-panel .empty"],
  ["monitor-agents", "#/monitor/agents", "#tab-panel .panel table, #tab-panel .empty"],
  ["monitor-kernel", "#/monitor/kernel", "#tab-panel .panel table, #tab-panel .empty"],
  ["monitor-negotiation", "#/monitor/negotiation", "text=Clients bound on demand"],
  ["monitor-corba", "#/monitor/corba", "#tab-panel .panel, #tab-panel .empty"],
  ["monitor-xds", "#/monitor/xds", "#tab-panel .panel table, #tab-panel .empty"],
  ["monitor-steer", "#/monitor/steer", "#tab-panel .panel table, #tab-panel .empty"],
  ["monitor-kubernetes", "#/monitor/kubernetes", "#tab-panel .panel table, #tab-panel .empty"],
  ["monitor-certificates", "#/monitor/certificates", "#tab-panel .panel table, #tab-panel .empty"],
  ["monitor-ftp", "#/monitor/ftp", "#tab-panel .panel table, #tab-panel .empty"],
  ["monitor-process", "#/monitor/process", "text=The process"],
  ["monitor-counters", "#/monitor/counters", "#tab-panel tbody tr"],
  ["config", "#/config", ".tree"],
  ["config-rule", `#/config/rule/${rule}`, "#item-name"],
  ["config-rule-servers", `#/config/rule/${rule}/servers`, ".members-edit"],
  ["config-rule-algorithm", `#/config/rule/${rule}/algorithm`, "text=granularity"],
  ["config-rule-keepalive", `#/config/rule/${rule}/keepalive`, "text=health check"],
  ["config-rule-more", `#/config/rule/${rule}/more`, ".add select"],
  ["config-new", "#/config/new/rule", "#new-listen"],
  ["config-admin", "#/config/table/admin", ".field, .empty"],
  ["config-text", "#/config/text", ".textedit textarea"],
  ["config-history", "#/config/history", "#tab-panel tbody tr"],
  ["config-reference", "#/config/reference?find=health", "#tab-panel tbody tr"],
  ["whatif", `#/whatif/${group}`, "#choice-0"],
  ["audit", "#/audit", "text=This session"],
];

async function open(hash, wait) {
  // By way of an empty hash, so that a dialog that is open goes.
  await page.evaluate((hash) => (location.hash = hash), hash);
  await page.waitForSelector(`main >> ${wait}`, { timeout: 15_000 });
}

async function axe(where, told = null) {
  await page.evaluate(AXE);
  const { violations } = await page.evaluate(() => axe.run(document, { resultTypes: ["violations"] }));
  const found = violations.flatMap((item) => item.nodes.slice(0, 3).map((node) => `${where}: ${item.id}: ${node.target.join(" ")} ${node.failureSummary?.split("\n")[1] ?? ""}`));
  if (told) told.push(...found);
  else assert.deepEqual(found, [], found.join("\n"));
}

async function shot(name) {
  if (process.env.SCREENSHOTS) await page.screenshot({ path: `${SHOTS}${name}.png`, animations: "disabled" });
}

/** Asks again until it is so. */
async function until(holds) {
  for (let tries = 0; tries < 300; tries++) {
    if (await holds()) return;
    await page.evaluate(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))));
  }
  assert.fail(`it did not become so: ${holds}`);
}

const toast = (text) => page.waitForSelector(`.toast:has-text("${text}")`);

for (const [mode, viewport] of [["light", DESKTOP], ["dark", DESKTOP], ["phone", PHONE]])
  test(`each page, ${mode}: axe finds nothing, nothing is wider than the window`, async () => {
    await page.setViewportSize(viewport);
    await page.emulateMedia({ colorScheme: mode === "dark" ? "dark" : "light" });
    const told = [];
    for (const [name, hash, wait] of PAGES()) {
      await open(hash, wait);
      // Charts and tables have come, and a sample or two.
      await page.waitForFunction(() => !document.querySelector(".loading"), undefined, { timeout: 15_000 });
      if (name === "group") await page.waitForFunction(() => document.querySelectorAll("canvas").length >= 5 || document.querySelector(".empty"));
      await page.evaluate(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))));
      await axe(`${name} ${mode}`, told);
      const wide = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
      if (wide > 0) told.push(`${name} ${mode}: ${wide} px wider than the window`);
      await shot(`${name}-${mode}`);
    }
    await page.setViewportSize(DESKTOP);
    await page.emulateMedia({ colorScheme: "light" });
    assert.deepEqual(told, [], told.join("\n"));
  });

test("the first picture comes soon, and the page has no errors", async () => {
  const fresh = await browser.context.newPage();
  watch(fresh);
  const begin = performance.now();
  await fresh.goto(`${base}/console/`);
  await fresh.waitForSelector(".figures");
  const took = performance.now() - begin;
  const paint = await fresh.evaluate(() => performance.getEntriesByName("first-contentful-paint")[0]?.startTime);
  console.log(`# first contentful paint ${paint?.toFixed(0)} ms, figures after ${took.toFixed(0)} ms`);
  await fresh.close();
});

test("a member is drained, and is ready again by Undo", async () => {
  await open(`#/groups/${group}`, ".virtual tbody tr");
  const select = page.locator(`select[aria-label="State of ${member}"]`);
  await select.selectOption("drain");
  await toast("drains");
  await page.waitForSelector(`.virtual tr:has-text("${member}") :text("draining")`);
  await page.click(".toast >> text=Undo");
  await page.waitForFunction((name) => document.querySelector(`select[aria-label="State of ${name}"]`).value === "ready", member);
  await until(async () => (await api("GET", `/v1/groups/${group}/members/${encodeURIComponent(member)}`)).admin === "ready");
});

test("several members are put in maintenance at once, but not all without a question", async () => {
  await open(`#/groups/${group}`, ".virtual tbody tr");
  await page.check('input[aria-label="Choose all"]');
  await page.click('.panel header .button:has-text("Maintenance")');
  await page.waitForSelector('dialog:has-text("Take out every member?")');
  await page.click('dialog >> text=Cancel');
  await page.uncheck('input[aria-label="Choose all"]');
  await page.check(`input[aria-label="Choose ${member}"]`);
  await page.click('.panel header .button:has-text("Maintenance")');
  await toast("maintenance");
  await page.waitForSelector(`.virtual tr:has-text("${member}") :text-is("maintenance")`);
  await page.click('.panel header .button:has-text("Ready")');
  await page.waitForFunction((name) => document.querySelector(`select[aria-label="State of ${name}"]`).value === "ready", member);
  await page.uncheck(`input[aria-label="Choose ${member}"]`);
});

test("a group is put into maintenance, and is back by Undo", async () => {
  await open(`#/groups/${group}`, ".virtual tbody tr");
  await page.click(".page-head button:text-is('Maintenance')");
  await toast("maintenance on");
  await page.waitForSelector(".page-head .tag:has-text('in maintenance')");
  assert.equal((await api("GET", `/v1/groups/${group}`)).maintenance, true);
  await page.click(".toast:has-text('maintenance on') >> text=Undo");
  await page.waitForSelector(".page-head button:text-is('Maintenance')");
  assert.ok(!(await api("GET", `/v1/groups/${group}`)).maintenance);
});

test("weight, backup and a check now, in the dialog of a member", async () => {
  await open(`#/groups/${group}?member=${encodeURIComponent(member)}`, "dialog .props");
  const weight = page.locator("dialog label:has-text('Weight') input");
  const before = await weight.inputValue();
  await weight.fill("5000");
  await page.click("dialog >> text=Set");
  await page.waitForSelector("dialog .problem:has-text('0 to 1000')");
  await weight.fill("2.5");
  await page.click("dialog button:text-is('Set')");
  await toast("Weight of");
  await page.waitForSelector("dialog dd:has-text('of 2.5')");
  // Each change can be undone in the notice that confirms it; the dialog lies above it for the mouse.
  const undo = () => page.locator(".toast:has-text('Undo') button:text-is('Undo')").last().dispatchEvent("click");
  await undo();
  await page.waitForSelector(`dialog dd:has-text('of ${before}')`);
  await page.click("dialog >> text=Check now");
  await page.waitForSelector("dialog [role=status] .state");
  await page.check("dialog label:has-text('Backup') input");
  await toast("is a backup");
  await undo();
  await until(async () => (await api("GET", `/v1/groups/${group}/members/${encodeURIComponent(member)}`)).backup === false);
  await page.waitForFunction(() => !document.querySelector("dialog label.check input").checked);
  await page.keyboard.press("Escape");
  await page.waitForSelector("dialog", { state: "detached" });
});

test("the strategy is changed live, with its parameters, and undone", async () => {
  const before = (await api("GET", `/v1/groups/${group}`)).strategy;
  const other = before === "least_request" ? "prequal" : "least_request";
  await open(`#/groups/${group}/strategy`, "#strategy");
  await page.selectOption("#strategy", other);
  const first = page.locator("#tab-panel input").first();
  await first.fill("1000000");
  await page.waitForSelector(".problem:has-text('number from')");
  assert.ok(await page.isDisabled("text=Apply now"));
  await first.fill(other === "least_request" ? "3" : "0.9");
  await page.click("text=Apply now");
  await toast("from the next request on");
  assert.equal((await api("GET", `/v1/groups/${group}`)).strategy, other);
  await page.click(".toast:has-text('from the next request on') >> text=Undo");
  await until(async () => (await api("GET", `/v1/groups/${group}`)).strategy === before);
});

test("a decision is explained, for a client too; a wrong address is said", async () => {
  await open(`#/groups/${group}/explain`, "text=Now, for the next request");
  await page.waitForSelector("#tab-panel tbody tr");
  await page.fill("#client", "no address");
  await page.click("text=Ask");
  await page.waitForSelector("#client-problem:has-text('IP address')");
  await page.fill("#client", "192.0.2.7");
  await page.click("text=Ask");
  await page.waitForSelector("text=Now, for 192.0.2.7");
});

test("zones of a group: which come first, and what share of the requests they get", async (t) => {
  const zoned = (await api("GET", "/v1/groups")).find((item) => item.zones?.length > 1);
  if (!zoned) return t.skip("no group goes by zones");
  await open(`#/groups/${zoned.name}`, "section:has(h2:text-is('Zones')) tbody tr");
  const rows = page.locator("section:has(h2:text-is('Zones')) tbody tr");
  assert.equal(await rows.count(), zoned.zones.length);
  for (const [at, zone] of zoned.zones.entries()) {
    const text = await rows.nth(at).innerText();
    assert.ok(text.includes(zone.name ?? "no zone"), text);
    assert.ok(text.includes(`${zone.rank + 1}.`), text);
    assert.equal(text.includes("the balancer's own"), zone.own, text);
  }
});

test("engines of a group: tokens, cache hits and times of tokens, together and for each member", { skip: onlyMock }, async () => {
  await withMock({}, async (other, url) => {
    await page.goto(`${url}/console/#/groups/${group}`);
    await page.waitForSelector(".virtual tbody tr");
    assert.equal(await page.locator("h2:text-is('Engines')").count(), 0);
    other.control("engines", {});
    await page.reload();
    const rows = page.locator("section:has(h2:text-is('Engines')) tbody tr");
    await rows.first().waitFor();
    const { members } = other.world.groupStatus(other.world.groups.get(group));
    assert.equal(await rows.count(), members.length + 1);
    const all = await rows.first().innerText();
    for (const said of ["all members", "63 %", "180 ms", "740 ms", "21.5 ms", `${(12.3454 * members.length).toFixed(1)} k`, `${(4.321 * members.length).toFixed(1)} k`]) assert.ok(all.includes(said), `${said}: ${all}`);
    for (const [at, member] of members.entries()) assert.ok((await rows.nth(at + 1).innerText()).startsWith(member.name));
  });
});

test("clients of xDS are named, with what they accept and what they refuse", async (t) => {
  const clients = (await api("GET", "/v1/xds"))?.clients ?? [];
  const refuses = clients.find((client) => client.subscriptions.some((of) => of.last_nack));
  if (!refuses) return t.skip("no client of xDS refuses anything");
  const { type, last_nack: nack } = refuses.subscriptions.find((of) => of.last_nack);
  await open("#/monitor/xds", "#tab-panel tbody tr");
  const streams = clients.reduce((sum, client) => sum + Math.max(1, client.subscriptions.length), 0);
  assert.equal(await page.locator("#tab-panel tbody tr").count(), streams);
  await page.fill("input[aria-label='Filter clients']", refuses.node);
  const row = page.locator(`#tab-panel tbody tr:has(th:has-text("${refuses.node}")):has(td:has-text("${type}"))`);
  const text = await row.first().innerText();
  for (const said of [`refuses ${nack.version}`, nack.reason, refuses.address]) assert.ok(text.includes(said), `${said}: ${text}`);
  await page.fill("input[aria-label='Filter clients']", "nobody is called this");
  await page.waitForSelector("text=No client matches");
  await page.fill("input[aria-label='Filter clients']", "");
  await page.waitForSelector("#tab-panel tbody tr");
});

test("a refusal that was mended is told, but is no trouble", { skip: onlyMock }, async () => {
  await open("#/monitor/xds", "#tab-panel tbody tr");
  const row = page.locator('#tab-panel tbody tr:has(th:has-text("shop-3")):has(td:has-text("cluster"))');
  const text = await row.innerText();
  assert.match(text, /accepted/);
  assert.doesNotMatch(text, /refuses/);
  assert.match(text, /refused 7a31c0de-4: unknown policy/);
});

const section = (title) => `section:has(h2:has-text("${title}"))`;

test("services of Kubernetes with their watches, and kinds that are followed", async (t) => {
  const services = await api("GET", "/v1/kubernetes");
  if (services.length === 0) return t.skip("no members are of Kubernetes");
  await open("#/monitor/kubernetes", `${section("Services with members")} tbody tr`);
  for (const { service, server, watching, ports } of services) {
    const text = await page.locator(`${section("Services with members")} tbody tr:has(th:has-text("${service}"))`).innerText();
    const trouble = ports.find((port) => port.error)?.error;
    for (const said of [server, trouble ?? (watching ? "watching" : "connecting"), ...ports.map((port) => `${port.port}: ${port.members} member`)]) assert.ok(text.includes(said), `${said}: ${text}`);
  }
  const kinds = await api("GET", "/v1/kubernetes/kinds");
  const rows = page.locator(`${section("Kinds that are followed")} tbody tr`);
  assert.equal(await rows.count(), kinds.length);
  for (const [at, { kind, error }] of kinds.entries()) {
    const text = await rows.nth(at).innerText();
    for (const said of [kind, error ?? ""]) assert.ok(text.includes(said), `${said}: ${text}`);
  }
});

test("objects of Kubernetes: which are not served as written, and why", { skip: onlyMock }, async () => {
  await open("#/monitor/kubernetes", `${section("Objects")} tbody tr`);
  await page.waitForSelector(".figures div:has(dt:text-is('Writes statuses')) dd:text-is('lb-2')");
  await page.waitForSelector(".figures div:has(dt:text-is('With problems')) dd:text-is('2')");
  const rows = page.locator(`${section("Objects")} tbody tr`);
  const objects = await api("GET", "/v1/kubernetes/objects");
  assert.equal(await rows.count(), objects.length);
  // Those with problems come first, with the reason and the cure.
  for (const [at, said] of [[0, ["infra/front", "Gateway", "1 problem", "192.0.2.10", "3 routes", "RefsNotResolved", "listener https", "create it"]], [1, ["shop/api", "HTTPRoute", "infra/front", "BackendNotFound"]]]) {
    const text = await rows.nth(at).innerText();
    for (const part of said) assert.ok(text.includes(part), `${part}: ${text}`);
  }
  assert.ok((await rows.nth(2).innerText()).includes("as written"));
  await page.check("label:has-text('Only with problems') input");
  assert.equal(await rows.count(), 2);
  await page.uncheck("label:has-text('Only with problems') input");
  await page.selectOption("select[aria-label=Kind]", "HTTPRoute");
  assert.equal(await rows.count(), 3);
  await page.fill("input[aria-label='Filter objects']", "media/");
  assert.equal(await rows.count(), 1);
  await page.fill("input[aria-label='Filter objects']", "nothing is called this");
  await page.waitForSelector("text=No object matches");
  await page.fill("input[aria-label='Filter objects']", "");
  await page.selectOption("select[aria-label=Kind]", "");
  // The namespace holds for both tables.
  await page.locator(`${section("Objects")} select[aria-label=Namespace]`).selectOption("media");
  assert.deepEqual(await page.locator(`${section("Objects")} tbody th`).allInnerTexts(), ["media/files"]);
  assert.equal(await page.locator(`${section("Services with members")} tbody tr`).count(), 1);
  await page.locator(`${section("Services with members")} select[aria-label=Namespace]`).selectOption("");
  assert.equal(await rows.count(), objects.length);
});

test("a namespace of Kubernetes: its groups and rules, of 5,000 groups", { skip: onlyMock }, async () => {
  await withMock({ scale: "kubernetes", warm: 2 }, async (_, url) => {
    const name = (team, web) => `kubernetes.team-${team}.web-${web}.80`;
    await page.goto(`${url}/console/#/`);
    await page.waitForSelector(".flow .node");
    // Not all are laid out: the picture has 60 groups, and a table the rows that are seen.
    assert.ok((await page.locator(".flow .node").count()) <= 60 + 5);
    assert.ok((await page.locator(".virtual tbody tr").count()) < 100);
    await page.waitForSelector("text=and 4003 groups more, beyond the limit");
    await page.waitForSelector(`${section("Rules")} tr:has(th:has-text("kubernetes.443")) :text("and 4995 more")`);
    await page.selectOption("select[aria-label=Namespace]", "team-24");
    await page.waitForSelector(`.virtual tr:has-text("${name(24, "000")}")`);
    // The groups of a namespace are there, also beyond the first 1,000 of all.
    await page.waitForFunction(() => !document.body.innerText.includes("beyond the limit"));
    assert.equal(await page.locator(".virtual table").getAttribute("aria-rowcount"), "201");
    assert.deepEqual(await page.locator(`${section("Rules")} tbody th`).allInnerTexts(), ["kubernetes.443"]);
    await page.selectOption("select[aria-label=Namespace]", "team-07");
    await page.waitForSelector(`${section("Rules")} tbody th:has-text("kubernetes.5432")`);
    assert.equal(await page.locator(`${section("Rules")} tbody tr`).count(), 2);
    // The same namespace on the other page, with the filter by name.
    await page.goto(`${url}/console/#/groups`);
    await page.waitForSelector("h1:text-is('Groups')");
    assert.equal(await page.inputValue("select[aria-label=Namespace]"), "team-07");
    await page.fill("input[aria-label='Filter by name']", "web-199");
    await page.waitForFunction(() => document.querySelectorAll("main tbody tr").length === 1);
    await page.click(`main a:text-is("${name("07", "199")}")`);
    // The group is beyond the first 1,000, and its members are live, whatever namespace is chosen.
    await page.waitForSelector(".virtual tbody tr");
    assert.equal(await page.locator(".virtual tbody tr").count(), 2);
    await page.goto(`${url}/console/#/groups/${name(24, "199")}`);
    await page.waitForSelector(`h1:has-text("${name(24, "199")}")`);
    await page.waitForSelector(".virtual tbody tr");
    await page.goto(`${url}/console/#/groups`);
    await page.selectOption("select[aria-label=Namespace]", { label: "Without Kubernetes" });
    await page.waitForFunction(() => [...document.querySelectorAll("main tbody th")].some((of) => of.innerText === "web"));
    assert.ok((await page.locator("main tbody th").allInnerTexts()).every((text) => !text.startsWith("kubernetes.")));
    await page.goto(`${url}/console/#/monitor/kubernetes`);
    await page.selectOption("select[aria-label=Namespace] >> nth=0", "");
    await page.waitForSelector("text=more: choose a namespace or a kind");
    assert.equal(await page.locator(`${section("Objects")} tbody tr`).count(), 200);
  });
});

test("balancers that are steered: what they have, and why not", { skip: onlyMock }, async () => {
  await open("#/monitor/steer", "#tab-panel tbody tr");
  await page.waitForSelector("text=permission denied");
  await page.waitForSelector("text=dry run: nothing is changed");
  const row = page.locator("#tab-panel tbody tr:has-text('somebody else has changed its weight')").first();
  assert.match(await row.innerText(), /216\s+100\s+web2/);
});

test("a load alert is forced and left to the load again", async () => {
  await open("#/monitor/locations", "#tab-panel tbody tr");
  const row = page.locator("#tab-panel tbody tr").first();
  await row.locator("button:text-is('On')").click();
  await toast("forced on");
  await row.locator("button[aria-pressed=true]:text-is('On')").waitFor();
  await row.locator("button:text-is('Auto')").click();
  await toast("the load decides");
  await row.locator("button[aria-pressed=true]:text-is('Auto')").waitFor();
});

test("a rule is put into maintenance and disabled, and both are undone", async () => {
  await open("#/", ".flow .node");
  await page.click(`button[aria-label="Maintenance of rule ${rule}"]`);
  await page.waitForSelector(`button[aria-label="End maintenance of rule ${rule}"]`);
  await page.click(`button[aria-label="End maintenance of rule ${rule}"]`);
  await page.waitForSelector(`button[aria-label="Maintenance of rule ${rule}"]`);
  await page.click(`button[aria-label="Disable rule ${rule}"]`);
  await page.click("dialog button:text-is('Disable')");
  await page.waitForSelector(`button[aria-label="Enable rule ${rule}"]`);
  await page.click(`button[aria-label="Enable rule ${rule}"]`);
  await page.waitForSelector(`button[aria-label="Disable rule ${rule}"]`);
});

async function apply(comment) {
  await page.waitForSelector(".applybar .ok");
  await page.click("text=Review and apply");
  await page.waitForSelector("dialog .diff .plus, dialog .diff .minus");
  if (comment) await page.fill("dialog label:has-text('Why') input", comment);
  await page.click("dialog button:text-is('Apply')");
  await toast("is in force");
  await page.waitForSelector("dialog", { state: "detached" });
  await page.waitForSelector(".applybar", { state: "detached" });
}

test("a key is changed in a form: problems beside the field, a diff, applied, in the history, undone", async () => {
  const before = await api("GET", "/v1/config");
  await open(`#/config/rule/${rule}`, "#item-name");
  const field = page.locator(`[id="f-rule.${rule}.connection_timeout"]`);
  await field.fill("2 parsecs");
  await page.waitForSelector(".field.changed .problem");
  assert.equal(await field.getAttribute("aria-invalid"), "true");
  assert.ok(await page.isDisabled("text=Review and apply"));
  await axe("config with a problem");
  await shot("config-problem-light");
  await field.fill("700ms");
  await page.waitForSelector(".applybar .ok");
  await page.click("text=Review and apply");
  await page.waitForSelector("dialog .diff .plus");
  await axe("diff");
  await shot("config-diff-light");
  await page.keyboard.press("Escape");
  await apply("slower network");
  const now = await api("GET", "/v1/config");
  assert.equal(now.values.rule[rule].connection_timeout, "700ms");
  await open("#/config/history", "#tab-panel tbody tr");
  await page.waitForSelector("td:has-text('slower network')");
  await page.click("text=Undo the last change");
  await page.click("dialog button:text-is('Undo')");
  await toast("Undone");
  assert.equal((await api("GET", "/v1/config")).text, before.text);
  await page.waitForSelector("td:has-text('undo')");
});

test("a rule is created, renamed, disabled and deleted; a group, too", async () => {
  await open("#/config/new/group", "#new-name");
  await page.fill("#new-name", "fresh");
  await page.fill("#new-members", "127.0.0.1:1, 127.0.0.1:2");
  await page.click("text=Create >> nth=0");
  await page.waitForSelector("h2:has-text('fresh')");
  await open("#/config/new/rule", "#new-name");
  await page.fill("#new-name", "bad name");
  await page.click("button:text-is('Create')");
  await page.waitForSelector("p.problem:has-text('A name has')");
  await page.fill("#new-name", "extra");
  await page.fill("#new-listen", "127.0.0.1:0");
  await page.selectOption("#new-group", "fresh");
  await page.click("button:text-is('Create')");
  await page.waitForSelector("#item-name");
  await apply();
  let { values } = await api("GET", "/v1/config");
  assert.deepEqual(values.rule.extra, { listen: "127.0.0.1:0", group: "fresh" });
  assert.deepEqual(values.group.fresh.members, ["127.0.0.1:1", "127.0.0.1:2"]);

  await open("#/config/group/fresh", "#item-name");
  await page.fill("#item-name", "fresher");
  await page.click("text=Rename");
  await page.waitForSelector("h2:has-text('fresher')");
  await page.waitForSelector('input[aria-label="Address of member 2"]');
  await page.click('button[aria-label="Remove 127.0.0.1:2"]');
  await page.fill('input[aria-label="Weight of member 1"]', "3");
  await page.fill('input[aria-label="Name of member 1"]', "s1");
  await page.click("text=Add a member");
  await page.fill('input[aria-label="Address of member 2"]', "127.0.0.1:3");
  await apply();
  ({ values } = await api("GET", "/v1/config"));
  assert.equal(values.rule.extra.group, "fresher");
  assert.deepEqual(values.group.fresher.members, [{ address: "127.0.0.1:1", weight: 3, name: "s1" }, "127.0.0.1:3"]);

  // The member is called by its name, with the address beside it.
  await open("#/groups/fresher", ".virtual tbody tr");
  await page.waitForSelector('.virtual tbody tr:has-text("s1"):has-text("127.0.0.1:1")');
  await page.selectOption('select[aria-label="State of s1"]', "drain");
  for (const called of ["s1", "127.0.0.1:1"]) await until(async () => (await api("GET", `/v1/groups/fresher/members/${called}`)).admin === "drain");

  await open("#/config/rule/extra", "#item-name");
  await page.click(".panel header button:text-is('Disable')");
  await apply();
  assert.equal((await api("GET", "/v1/config")).values.rule.extra.enabled, false);
  await page.click(".panel header button:text-is('Enable')");
  await apply();

  await page.click(".panel header >> text=Delete");
  await open("#/config/group/fresher", "#item-name");
  await page.click(".panel header >> text=Delete");
  await apply();
  ({ values } = await api("GET", "/v1/config"));
  assert.equal(values.rule.extra, undefined);
  assert.equal(values.group?.fresher, undefined);
});

test("strategy, health check and lists are edited in forms", async () => {
  await open("#/config/new/rule", "#new-name");
  await page.fill("#new-name", "forms");
  await page.fill("#new-listen", "127.0.0.1:0");
  await page.fill("#new-members", "127.0.0.1:1");
  await page.click("button:text-is('Create')");
  await open("#/config/rule/forms/algorithm", "text=granularity");
  await page.selectOption("[id='f-rule.forms.strategy']", "least_request");
  await page.locator(".sub input.narrow").first().fill("99");
  await page.waitForSelector(".sub .problem:has-text('16')");
  await page.locator(".sub input.narrow").first().fill("3");
  await page.selectOption("[id='f-rule.forms.granularity']", "per_session");
  await open("#/config/rule/forms/keepalive", "text=health check");
  await page.selectOption("[id='f-rule.forms.health_check']", "keys");
  await page.selectOption(".sub .add select", "path");
  await page.fill("[id='f-rule.forms.health_check.path']", "/index.html");
  await page.selectOption(".sub .add select", "response_code");
  await page.click("[id='f-rule.forms.health_check.response_code']");
  await page.fill('input[aria-label="response code 1"]', "200");
  await page.selectOption(".sub .add select", "doc_text");
  await page.fill("[id='f-rule.forms.health_check.doc_text']", "TARGET");
  await page.waitForSelector(".applybar .ok");
  await apply();
  const { values } = await api("GET", "/v1/config");
  assert.deepEqual(values.rule.forms.strategy, { name: "least_request", choices: 3 });
  assert.equal(values.rule.forms.granularity, "per_session");
  assert.deepEqual({ ...values.rule.forms.health_check, response_code: [values.rule.forms.health_check.response_code].flat() }, { path: "/index.html", response_code: [200], doc_text: "TARGET" });
  await open("#/config/rule/forms", "#item-name");
  await page.click(".panel header >> text=Delete");
  await apply();
});

test("the text: problems at their lines, applied, uploaded", async () => {
  await open("#/config/text", ".textedit textarea");
  const before = await page.inputValue(".textedit textarea");
  await page.fill(".textedit textarea", `${before}\nnonsense = [\n`);
  await page.waitForSelector(".gutter .marked");
  await page.waitForSelector("ul.problems button:has-text('Line')");
  await axe("text with a problem");
  await page.click("ul.problems button >> nth=0");
  await page.waitForFunction(() => document.activeElement.tagName === "TEXTAREA");
  await page.fill(".textedit textarea", `# said in the text\n${before}`);
  await page.waitForSelector("#tab-panel .actions .ok");
  await page.click("text=Review and apply");
  await page.waitForSelector("dialog .diff .plus");
  await page.click("dialog button:text-is('Apply')");
  await page.waitForSelector("dialog", { state: "detached" });
  assert.equal((await api("GET", "/v1/config")).text, `# said in the text\n${before}`);
  await page.setInputFiles("input[type=file]", { name: "evenkeel.toml", mimeType: "text/plain", buffer: Buffer.from(before) });
  await page.waitForFunction((text) => document.querySelector(".textedit textarea").value === text, before);
  await page.waitForSelector("#tab-panel .actions .ok");
  await page.click("text=Review and apply");
  await page.waitForSelector("dialog .diff .minus");
  await page.click("dialog button:text-is('Apply')");
  await until(async () => (await api("GET", "/v1/config")).text === before);
  const text = await page.evaluate(async () => (await fetch("/v1/config/file")).text());
  assert.equal(text, before, "the download is what is in force");
});

test("the image of a rule goes out, and comes in under another name", async () => {
  await open(`#/config/rule/${rule}`, "#item-name");
  const image = await page.evaluate(async (path) => (await fetch(path)).text(), await page.getAttribute("a:text-is('Export')", "href"));
  assert.ok(image.includes(`[rule.${rule}]`), image);
  const before = await api("GET", "/v1/config");
  const bring = (text) => page.setInputFiles("input[aria-label='Import a rule']", { name: `${rule}.toml`, mimeType: "text/plain", buffer: Buffer.from(text) });
  await open("#/config", ".tree");
  // What is here already is no change.
  await bring(image);
  await page.waitForSelector(".image-tables:has-text('The same as here')");
  await page.keyboard.press("Escape");
  await page.waitForSelector("dialog", { state: "detached" });
  // One that differs is asked about.
  await bring(image.replace(`[rule.${rule}]\n`, `[rule.${rule}]\nmax_connections = 7777\n`));
  await page.waitForSelector("dialog .error-box");
  assert.ok(await page.isDisabled("dialog button:text-is('Apply')"));
  await axe("an image that differs");
  const choice = page.locator(`[id="image-rule.${rule}"]`);
  await choice.selectOption("replace");
  await page.waitForSelector(".image-tables:has-text('Replace the table here')");
  await choice.selectOption("rename");
  await page.fill(`input[aria-label="New name of rule.${rule}"]`, "brought");
  await page.keyboard.press("Tab");
  await page.waitForSelector(".image-tables:has-text('New here: rule.brought')");
  await page.click("dialog button:text-is('Apply')");
  await page.waitForSelector("dialog", { state: "detached" });
  const now = await api("GET", "/v1/config");
  assert.equal(now.values.rule.brought.max_connections, 7777);
  assert.deepEqual(now.values.rule[rule], before.values.rule[rule]);
  await open("#/config/history", "#tab-panel tbody tr");
  await page.click("text=Undo the last change");
  await page.click("dialog button:text-is('Undo')");
  await toast("Undone");
  assert.equal((await api("GET", "/v1/config")).text, before.text);
  // What is none is told.
  await open("#/config", ".tree");
  await bring("[admin]\n");
  await page.waitForSelector("dialog .error-box:has-text('an image has one rule')");
  await page.keyboard.press("Escape");
});

test("what if: two strategies side by side", async () => {
  await open(`#/whatif/${group}`, "#choice-0");
  await page.fill("label:has-text('Requests') input", "2000");
  await page.click("button:text-is('Play')");
  await page.waitForSelector(".bars .bar, .error-box", { timeout: 60_000 });
  if (!REAL) assert.equal(await page.locator(".bars").count(), 2);
  if (await page.locator(".bars").count()) {
    await axe("what if with results");
    await shot("whatif-results-light");
  }
});

test("search finds groups, members and keys by keyboard", async () => {
  await open("#/", ".flow .node");
  await page.locator("main").focus();
  await page.keyboard.press("/");
  assert.equal(await page.evaluate(() => document.activeElement.getAttribute("role")), "combobox");
  await page.keyboard.type(group);
  await page.waitForSelector(".hits li[aria-selected=true]");
  await axe("search");
  await page.keyboard.press("Enter");
  await page.waitForFunction((group) => location.hash.includes(`/groups/${group}`), group);
  await page.keyboard.press("/");
  await page.keyboard.type(member);
  await page.waitForSelector(`.hits li:has-text("member of")`);
  await page.keyboard.press("Escape");
});

test("all by keyboard: from the skip link to a changed member and back", async () => {
  await page.goto(`${base}/console/#/`);
  await page.reload();
  await page.waitForSelector(".flow .node");
  const focused = () => page.evaluate(() => ({ text: document.activeElement?.textContent?.trim().slice(0, 60), label: document.activeElement?.getAttribute("aria-label") ?? "", tag: document.activeElement?.tagName, outline: getComputedStyle(document.activeElement).outlineStyle }));
  await page.keyboard.press("Tab");
  assert.match((await focused()).text, /Skip to the content/);
  await page.keyboard.press("Enter");
  assert.equal((await focused()).tag, "MAIN");
  // To the group in the flow picture.
  const reach = async (wanted, key = "Tab", most = 60) => {
    for (let i = 0; i < most; i++) {
      await page.keyboard.press(key);
      const now = await focused();
      if (wanted(now)) return now;
    }
    assert.fail("not reached by keyboard");
  };
  await reach((now) => now.label.startsWith(`${group} `) && now.label.includes(", group"));
  await page.keyboard.press("Enter");
  await page.waitForSelector(".virtual tbody tr");
  // Tabs by arrows, each with a visible focus.
  await page.locator("#tab-live").focus();
  await page.keyboard.press("ArrowRight");
  await page.waitForSelector("#tab-explain[aria-selected=true]");
  assert.notEqual((await focused()).outline, "none");
  await page.keyboard.press("ArrowLeft");
  await page.waitForSelector(".virtual tbody tr");
  const name = await reach((now) => now.tag === "A" && now.text === member, "Tab", 60);
  assert.notEqual(name.outline, "none");
  await page.keyboard.press("Enter");
  await page.waitForSelector("dialog .props");
  // The dialog keeps the focus.
  for (let i = 0; i < 25; i++) {
    await page.keyboard.press("Tab");
    assert.ok(await page.evaluate(() => document.activeElement === document.body || document.querySelector("dialog").contains(document.activeElement)), "the focus left the dialog");
  }
  await page.locator("dialog .segments button:has-text('Drain')").focus();
  await page.keyboard.press("Enter");
  await page.waitForSelector("dialog .segments button[aria-pressed=true]:has-text('Drain')");
  await page.locator("dialog .segments button:has-text('Ready')").focus();
  await page.keyboard.press("Space");
  await page.waitForSelector("dialog .segments button[aria-pressed=true]:has-text('Ready')");
  await page.keyboard.press("Escape");
  await page.waitForSelector("dialog", { state: "detached" });
  // And gives it back.
  await page.waitForFunction((member) => document.activeElement?.textContent?.trim() === member, member);
});

test("colours: as the system, dark, light; kept", async () => {
  await open("#/", ".flow .node");
  const button = page.locator("button[aria-label^='Colours']");
  await button.click();
  assert.equal(await page.evaluate(() => document.documentElement.dataset.theme), "dark");
  await page.reload();
  await page.waitForSelector(".flow .node");
  assert.equal(await page.evaluate(() => document.documentElement.dataset.theme), "dark");
  await button.click();
  await button.click();
  assert.equal(await page.evaluate(() => document.documentElement.dataset.theme), undefined);
});

test("charts have a table", async () => {
  await open(`#/groups/${group}`, ".virtual tbody tr");
  await page.waitForSelector(".chart canvas");
  assert.match(await page.locator(".chart .plot").first().getAttribute("aria-label"), REAL ? /Load of members|Share of the traffic/ : /Load of members/);
  await page.locator(".chart summary").nth(1).click();
  await page.waitForSelector(".chart details[open] tbody td");
});

test("without load reports the live page of a group begins with shares; members stand above the charts", { skip: onlyMock }, async () => {
  await withMock({}, async (other, url) => {
    other.control("silent", {});
    await page.goto(`${url}/console/#/groups/${group}`);
    await page.waitForSelector(".virtual tbody tr");
    await page.waitForSelector(".segments button[aria-pressed=true]:text-is('Share')");
    assert.match(await page.locator(".chart .plot").first().getAttribute("aria-label"), /Share of the traffic/);
    const above = await page.evaluate(() => document.querySelector(".virtual").getBoundingClientRect().top < document.querySelector(".chart").getBoundingClientRect().top);
    assert.ok(above, "the table of members is above the charts");
    await page.click(".segments button:text-is('Load')");
    await page.waitForSelector(".segments button[aria-pressed=true]:text-is('Load')");
    // All columns are there in a small window.
    await page.setViewportSize({ width: 1280, height: 800 });
    const cut = await page.evaluate(() => { const box = document.querySelector(".virtual"); return box.scrollWidth - box.clientWidth; });
    assert.ok(cut <= 0, `${cut} px of the table are cut off`);
    await page.setViewportSize(DESKTOP);
  });
});

test("what is chosen can be read under the mouse", async () => {
  await open(`#/groups/${group}`, ".virtual tbody tr");
  for (const colorScheme of ["light", "dark"]) {
    await page.emulateMedia({ colorScheme });
    for (const label of ["Share", "1 min"]) {
      // The mouse stays where it has clicked.
      await page.click(`.segments button:text-is('${label}')`);
      await page.waitForSelector(`.segments button[aria-pressed=true]:text-is('${label}')`);
      const ratio = await page.evaluate((label) => {
        const button = [...document.querySelectorAll(".segments button")].find((known) => known.textContent === label);
        if (!button.matches(":hover")) throw new Error("the mouse is elsewhere");
        const style = getComputedStyle(button);
        const light = (colour) => {
          const [r, g, b] = colour.match(/[\d.]+/g).map(Number).map((part) => part / 255).map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
          return 0.2126 * r + 0.7152 * g + 0.0722 * b;
        };
        const [a, b] = [light(style.color), light(style.backgroundColor)].sort((x, y) => y - x);
        return (a + 0.05) / (b + 0.05);
      }, label);
      assert.ok(ratio >= 4.5, `${label} ${colorScheme}: ${ratio.toFixed(2)} : 1`);
    }
  }
  await page.emulateMedia({ colorScheme: "light" });
});

test("a broken connection is said at once, what is shown is grey, and it heals by itself", { skip: onlyMock }, async () => {
  await open("#/", ".flow .node");
  mock.control("break", {});
  await page.waitForSelector("#disconnected");
  await page.waitForSelector(".frame.stale .live");
  assert.match(await page.textContent("#disconnected"), /old/);
  await axe("disconnected");
  await shot("disconnected-light");
  mock.control("heal", {});
  await page.waitForSelector("#disconnected", { state: "detached", timeout: 20_000 });
  await page.waitForSelector(".link.live");
});

test("two administrators: the second is told, and nothing is overwritten", { skip: onlyMock }, async () => {
  await open(`#/config/rule/${rule}`, "#item-name");
  await page.fill(`[id="f-rule.${rule}.connection_timeout"]`, "800ms");
  await page.waitForSelector(".applybar .ok");
  await page.click("text=Review and apply");
  await page.waitForSelector("dialog .diff .plus");
  const before = mock.text;
  mock.control("other", {});
  await page.waitForSelector("dialog:has-text('Somebody else')");
  await page.waitForSelector("dialog .diff .minus, dialog .diff .plus");
  assert.match(await page.textContent("dialog .diff"), /shutdown_grace/);
  await axe("conflict");
  await shot("config-conflict-light");
  assert.notEqual(mock.text, before);
  assert.doesNotMatch(mock.text, /800ms/);
  await page.click("dialog >> text=Put my changes on top of theirs");
  await page.waitForSelector("dialog:has-text('Apply these changes?') .diff .plus");
  await page.click("dialog button:text-is('Apply')");
  await toast("is in force");
  assert.match(mock.text, /800ms/);
  assert.match(mock.text, /shutdown_grace = "3[1-9]s"|shutdown_grace = "[45]\ds"/);
});

test("a file that was changed on the machine is a conflict, too", { skip: onlyMock }, async () => {
  await open(`#/config/rule/${rule}`, "#item-name");
  await page.fill(`[id="f-rule.${rule}.connection_timeout"]`, "900ms");
  await page.waitForSelector(".applybar .ok");
  mock.control("disk", {});
  await page.click("text=Review and apply");
  await page.waitForSelector("dialog .diff .plus");
  await page.click("dialog button:text-is('Apply')");
  await page.waitForSelector("dialog:has-text('The file differs')");
  assert.match(await page.textContent("dialog .diff"), /by hand/);
  await page.click("dialog >> text=Put the file in force");
  await page.waitForSelector("dialog:has-text('Apply these changes?') .diff .plus");
  await page.click("dialog button:text-is('Apply')");
  await toast("is in force");
});

test("a wrong change of the strategy gets the field and the range from the balancer", async () => {
  await open("#/config/reference?find=max_conn", "#tab-panel tbody tr");
  assert.ok((await page.locator("#tab-panel tbody tr").count()) >= 2);
});

async function withMock(options, body) {
  const other = new Mock(options);
  const url = await other.listen();
  const fresh = await browser.context.newPage();
  watch(fresh);
  const before = [page, base];
  [page, base] = [fresh, url];
  try {
    await body(other, url);
  } finally {
    [page, base] = before;
    await fresh.close();
    await other.close();
  }
}

test("nothing but a login page without a session; a wrong password is said; roles are kept", { skip: onlyMock }, async () => {
  await withMock({ users: true }, async (_, url) => {
    await page.goto(`${url}/console/`);
    await page.waitForURL(`${url}/login/`);
    for (const colorScheme of ["light", "dark"]) {
      await page.emulateMedia({ colorScheme });
      await axe(`login ${colorScheme}`);
      await shot(`login-${colorScheme}`);
    }
    await page.emulateMedia({ colorScheme: "light" });
    await page.setViewportSize(PHONE);
    await shot("login-phone");
    await page.setViewportSize(DESKTOP);
    await page.fill("#user", "viewer");
    await page.fill("#password", "wrong");
    await page.keyboard.press("Enter");
    await page.waitForSelector("#problem:has-text('wrong')");
    await page.fill("#password", "viewer");
    await page.keyboard.press("Enter");
    await page.waitForSelector(".link.live");
    await page.goto(`${url}/console/#/groups/web`);
    await page.waitForSelector(".virtual tbody tr");
    assert.ok(await page.isDisabled(".virtual tbody select >> nth=0"));
    await page.goto(`${url}/console/#/config/rule/shop`);
    await page.waitForSelector("#item-name");
    assert.ok(await page.isDisabled("#item-name"));
    await axe("configuration for looking");
    await page.click("text=Log out");
    await page.waitForURL(/\/login\//);
    await page.fill("#user", "admin");
    await page.fill("#password", "admin");
    await page.keyboard.press("Enter");
    await page.waitForSelector(".link.live");
    await page.goto(`${url}/console/#/groups/web`);
    await page.waitForSelector(".virtual tbody tr");
    await page.selectOption(".virtual tbody select >> nth=0", "drain");
    await page.waitForSelector(".toast:has-text('drains')");
    await page.goto(`${url}/console/#/audit`);
    await page.waitForSelector("td:has-text('admin')");
    await shot("audit-entries-light");
    for (let i = 0; i < 5; i++) await page.evaluate(() => fetch("/v1/login", { method: "POST", headers: { "Content-Type": "application/json" }, body: '{"user":"x","password":"y"}' }));
    await page.click("text=Log out >> nth=0");
    await page.waitForURL(/\/login\//);
    await page.fill("#user", "admin");
    await page.fill("#password", "admin");
    await page.keyboard.press("Enter");
    await page.waitForSelector("#problem:has-text('Try again in 30 s')");
  });
});

test("an empty configuration says what to do", { skip: onlyMock }, async () => {
  await withMock({ scale: "empty" }, async (_, url) => {
    await page.goto(`${url}/console/`);
    await page.waitForSelector("text=No rules yet");
    await axe("empty");
    await shot("empty-light");
    for (const hash of ["#/groups", "#/monitor/locations", "#/monitor/agents", "#/monitor/kernel", "#/monitor/corba", "#/monitor/xds", "#/monitor/steer", "#/monitor/kubernetes", "#/monitor/certificates", "#/monitor/ftp", "#/config", "#/whatif"]) {
      await page.goto(`${url}/console/${hash}`);
      await page.waitForSelector("main .empty");
    }
  });
});

async function frames(seconds) {
  return page.evaluate(
    (seconds) =>
      new Promise((done) => {
        const times = [];
        const begin = performance.now();
        const step = (now) => {
          times.push(now);
          if (now - begin < seconds * 1000) requestAnimationFrame(step);
          else {
            const gaps = times.slice(1).map((time, i) => time - times[i]).sort((a, b) => a - b);
            done({ fps: ((times.length - 1) * 1000) / (times.at(-1) - times[0]), p99: gaps[Math.floor(gaps.length * 0.99)], worst: gaps.at(-1) });
          }
        };
        requestAnimationFrame(step);
      }),
    seconds,
  );
}

for (const [scale, first] of [["20x200", "pool-01"], ["10000", "pool-01"]])
  test(`frames per second with ${scale} members`, { skip: onlyMock }, async () => {
    await withMock({ scale, warm: 120 }, async (_, url) => {
      for (const [name, hash, wait] of [["overview", "#/", ".flow .node"], ["group", `#/groups/${first}`, ".virtual tbody tr"]]) {
        await page.goto(`${url}/console/${hash}`);
        await page.waitForSelector(wait);
        const { fps, p99, worst } = await frames(5);
        console.log(`# ${scale} ${name}: ${fps.toFixed(1)} frames/s, 99th percentile ${p99.toFixed(1)} ms, worst ${worst.toFixed(0)} ms`);
        const rows = await page.locator(".virtual tbody tr").count();
        if (name === "group") assert.ok(rows > 10 && rows < 100, `${rows} rows are in the page`);
        await shot(`${name}-${scale}-light`);
      }
      // The far end of the list is there when one gets there.
      await page.evaluate(() => {
        const box = document.querySelector(".virtual");
        box.scrollTop = box.scrollHeight;
      });
      await page.waitForFunction(() => !document.querySelector(".virtual tbody tr:last-child").classList.contains("spacer"));
    });
  });

test("the content security policy refused nothing, and no page had an error", async () => {
  refused.push(...(await page.evaluate(() => window.refused ?? [])));
  assert.deepEqual(refused, []);
  assert.deepEqual(broken, []);
});
