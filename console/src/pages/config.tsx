// Administration: the whole configuration as forms, as a text, and its history.

import type { ComponentChildren, JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { may, part, send, words } from "../api";
import { ApplyDialog, type Draft, undo } from "../config/apply";
import { at, base, baseError, changedBelow, checkError, checking, discard, edits, loadBase, needsRestart, problems, problemsBelow, removeTable, rename, setValue, values, warnings } from "../config/draft";
import { Fields, freeName, problemText } from "../config/fields";
import { ImportDialog } from "../config/image";
import { keyText, sameKey, tableAt } from "../config/kinds";
import { Diff, TextEditor } from "../config/text";
import { plural, when } from "../format";
import { change, focus, mine } from "../live";
import { go, href, route } from "../router";
import { schema } from "../schema";
import type { Applied, Config, HistoryEntry, Json, Path, Problem, SchemaTable, Validated } from "../types";
import { Icon, Sign } from "../ui/icons";
import { complain, confirm, Dialog, Empty, Failed, Loading, Panel, Scroll, TabPanel, Tabs, tell, useAnswer } from "../ui/kit";
import { Prose } from "../ui/prose";

const VIEWS = [
  { id: "forms", label: "Forms" },
  { id: "text", label: "Text" },
  { id: "history", label: "History" },
  { id: "reference", label: "Reference" },
];

const isTable = (value: Json | undefined): value is { [key: string]: Json } => typeof value === "object" && value !== null && !Array.isArray(value);

export function ConfigPage(): JSX.Element {
  const first = route.value.parts[1] ?? "";
  const view = ["text", "history", "reference"].includes(first) ? first : "forms";
  useEffect(() => {
    focus.value = null;
    void loadBase();
    const unload = (event: BeforeUnloadEvent) => {
      if (edits.peek().length) event.preventDefault();
    };
    window.addEventListener("beforeunload", unload);
    return () => window.removeEventListener("beforeunload", unload);
  }, []);
  // The draft is kept, and lies on the new revision; the page says so.
  const [moved, setMoved] = useState<string | null>(null);
  useEffect(() => {
    const now = change.value;
    const known = base.peek();
    if (!now || !known || (now.revision && now.revision === known.revision)) return;
    if (edits.peek().length && now.revision && !mine.has(now.revision)) setMoved(`${now.who || "Somebody"} has changed the configuration meanwhile (${now.how}). Your changes are kept here, and are shown on top of it.`);
    void loadBase();
  }, [change.value]);
  const known = base.value;
  return (
    <>
      <div class="page-head">
        <h1>Configuration</h1>
        {known && <span class="muted small">{known.file} · revision <code>{known.revision.slice(0, 8)}</code></span>}
        <div class="actions"><FileActions /></div>
      </div>
      <Tabs label="Views of the configuration" tabs={VIEWS} current={view} onChange={(id) => go("config", ...(id === "forms" ? [] : [id]))} />
      <TabPanel id={view}>
        {baseError.value && !known ? <Failed error={baseError.value} retry={() => void loadBase()} /> : !known || !schema.value ? <Loading /> : (
          <>
            {!may("administer") && <p class="banner info"><Icon name="info" />You may look at the configuration. Changes need the role “administer”.</p>}
            {may("administer") && known.on_disk.unwritable && <p class="banner warn" id="unwritable"><Icon name="warn" /><span>Changes cannot be saved. {known.on_disk.unwritable}.</span></p>}
            {known.on_disk.differs && <DiskBanner known={known} />}
            {known.on_disk.error && <p class="banner warn"><Icon name="warn" />The file: {known.on_disk.error}</p>}
            {moved && <p class="banner info" role="status"><Icon name="info" />{moved}<button type="button" class="button small" onClick={() => setMoved(null)}>Understood</button></p>}
            {view === "text" ? <TextView known={known} /> : view === "history" ? <HistoryView known={known} /> : view === "reference" ? <Reference /> : <Forms />}
          </>
        )}
      </TabPanel>
    </>
  );
}

/** The file was edited on the machine, and is not in force: said, and not overwritten. */
function DiskBanner({ known }: { known: Config }): JSX.Element {
  return (
    <p class="banner warn" role="status">
      <Icon name="warn" />
      <span>The file on disk differs from the configuration in force. The console does not overwrite the file.</span>
      <button type="button" class="button small" disabled={!may("administer")} onClick={() => void (async () => {
        try {
          await send("POST", "/v1/reload", {});
          tell("The file is in force");
        } catch (error) {
          complain(error);
        }
        await loadBase();
      })()}>Put the file in force</button>
      {known.on_disk.error}
    </p>
  );
}

/** A text that was uploaded, for the editor. */
let uploaded: string | null = null;

/** A button that asks for a file, and hands its text on. */
function FileButton({ children, label, onText }: { children: ComponentChildren; label: string; onText: (text: string) => void }): JSX.Element {
  const input = useRef<HTMLInputElement>(null);
  return (
    <>
      <button type="button" class="button small" disabled={!may("administer")} onClick={() => input.current?.click()}>{children}</button>
      <input ref={input} type="file" accept=".toml,text/plain" class="hidden" aria-label={label} onChange={(event) => {
        const field = event.currentTarget;
        const file = field.files?.[0];
        if (!file) return;
        if (file.size > 4_000_000) return complain(new Error("The file is larger than 4 MB."));
        void file.text().then((text) => {
          field.value = "";
          onText(text);
        });
      }} />
    </>
  );
}

function FileActions(): JSX.Element {
  return (
    <>
      <a class="button small" href="/v1/config/file" download="evenkeel.toml">Download</a>
      <FileButton label="Upload a configuration" onText={(text) => {
        uploaded = text;
        location.hash = `${href("config", "text")}?upload=${Date.now()}`;
      }}>Upload …</FileButton>
    </>
  );
}

/** Takes the image of a rule in. Its differences are from what is in force, so that there is no draft meanwhile. */
function ImportButton(): JSX.Element {
  const [text, setText] = useState<string | null>(null);
  return (
    <>
      <FileButton label="Import a rule" onText={(text) => (edits.peek().length ? complain(new Error("Apply or discard your changes before you import a rule.")) : setText(text))}>Import …</FileButton>
      {text !== null && <ImportDialog text={text} onClose={() => setText(null)} />}
    </>
  );
}

// Forms

const NAMED = [
  { id: "rule", label: "Rules", one: "rule" },
  { id: "group", label: "Groups", one: "group" },
  { id: "cluster", label: "Clusters", one: "cluster" },
  { id: "location", label: "Locations", one: "location" },
] as const;

const SINGLE_LABELS: Record<string, string> = { admin: "Admin API", acme: "Certificates (ACME)", dns: "DNS", access_log: "Access log", broker: "Agents (broker)", negotiator: "Negotiator", corba: "CORBA", process: "User and rights", node: "Node", fleet: "Fleet", store: "Store", tracing: "Tracing", xds: "xDS" };

const plainHeader = (table: SchemaTable) => table.header.replace(/^\[|\]$/g, "");

function singles(): string[] {
  return schema.value!.tables.map(plainHeader).filter((header) => /^[a-z_]+$/.test(header));
}

function Forms(): JSX.Element {
  const parts = route.value.parts.slice(1);
  const [what, name] = parts;
  const tree = values.value;
  let body: ComponentChildren;
  if (what === "new") body = <NewItem kind={name ?? "rule"} />;
  else if (what && NAMED.some((known) => known.id === what) && name) body = isTable(at(tree, [what, name])) ? <Item key={what + name} kind={what} name={name} tab={parts[2]} /> : <div class="panel"><Empty title={`There is no ${what} “${name}”`}>It may have been removed or renamed.</Empty></div>;
  else if (what === "table" && name) body = <Single key={name} name={name} />;
  else if (what === "top") body = <Top />;
  else body = <Summary />;
  return (
    <>
      <div class="editor">
        <Tree what={what ?? ""} name={name ?? ""} />
        <div class="stack">{body}</div>
      </div>
      <ApplyBar />
    </>
  );
}

function Marks({ path }: { path: Path }): JSX.Element {
  const count = problemsBelow(keyText(path));
  const changed = changedBelow(path);
  return (
    <span class="marks">
      {changed && <span class="tag accent" title="changed">•<span class="sr"> changed</span></span>}
      {count > 0 && <><Sign level="bad" /><span class="sr">{plural(count, "problem")}</span></>}
    </span>
  );
}

function Tree({ what, name }: { what: string; name: string }): JSX.Element {
  const tree = values.value;
  return (
    <nav class="panel tree" aria-label="Parts of the configuration" tabIndex={-1}>
      <h2 class="sr">Parts of the configuration</h2>
      <div class="body">
        {NAMED.map((kind) => {
          const items = Object.keys((tree[kind.id] as object | undefined) ?? {});
          return (
            <div key={kind.id}>
              <h3>{kind.label}<a class="button small quiet" href={href("config", "new", kind.id)} aria-label={`New ${kind.one}`}><Icon name="plus" size={13} /></a></h3>
              {items.map((item) => (
                <a key={item} href={href("config", kind.id, item)} aria-current={what === kind.id && name === item ? "true" : undefined}>{item}<Marks path={[kind.id, item]} /></a>
              ))}
            </div>
          );
        })}
        <h3>The balancer</h3>
        <a href={href("config", "top")} aria-current={what === "top" ? "true" : undefined}>General</a>
        <a href={href("config", "table", "defaults")} aria-current={name === "defaults" ? "true" : undefined}>Defaults<Marks path={["defaults"]} /></a>
        {singles().map((single) => (
          <a key={single} href={href("config", "table", single)} aria-current={what === "table" && name === single ? "true" : undefined}>
            <span class={single in tree ? "" : "muted"}>{SINGLE_LABELS[single] ?? single}</span><Marks path={[single]} />
          </a>
        ))}
      </div>
    </nav>
  );
}

function Summary(): JSX.Element {
  const tree = values.value;
  const rules = Object.entries((tree.rule as Record<string, Json> | undefined) ?? {});
  if (rules.length === 0)
    return (
      <div class="panel">
        <Empty title="No rules yet">
          <p>A rule is a service that clients connect to.</p>
          <a class="button primary" href={href("config", "new", "rule")}>Create a rule</a> <ImportButton />
        </Empty>
      </div>
    );
  return (
    <Panel title="Rules" actions={<><a class="button small" href={href("config", "new", "rule")}><Icon name="plus" size={13} />New rule</a><ImportButton /></>}>
      <Scroll label="Rules of the configuration">
        <table>
          <thead><tr><th scope="col">Rule</th><th scope="col">Listens on</th><th scope="col">Protocol</th><th scope="col">Members</th><th scope="col">Strategy</th><th scope="col">Health check</th><th scope="col">Enabled</th></tr></thead>
          <tbody>
            {rules.map(([name, raw]) => {
              const rule = isTable(raw) ? raw : {};
              const home = groupHome(name, rule);
              const group = at(tree, home);
              const table = isTable(group) ? group : {};
              const strategy = isTable(table.strategy) ? String(table.strategy.name) : String(table.strategy ?? "adaptive");
              const check = table.health_check;
              return (
                <tr key={name}>
                  <th scope="row"><a href={href("config", "rule", name)}>{name}</a></th>
                  <td>{[rule.listen ?? []].flat().map(String).join(", ") || "–"}</td>
                  <td>{String(rule.protocol ?? "http")}</td>
                  <td>{Array.isArray(table.members) ? table.members.length : 0}{typeof rule.group === "string" && <span class="muted"> of {rule.group}</span>}</td>
                  <td>{strategy}</td>
                  <td>{check ? (isTable(check) ? `${String(check.type ?? "tcp")}, every ${String(check.interval ?? check.frequency ?? "2s")}` : "on") : <span class="muted">off</span>}</td>
                  <td>{rule.enabled === false ? <span class="tag">disabled</span> : "yes"}</td>
                </tr>
              );
            })}
          </tbody>
        </table>
      </Scroll>
    </Panel>
  );
}

/** Where the keys of a rule's group stand: in its own table, or in the group's. */
function groupHome(name: string, rule: { [key: string]: Json }): Path {
  return typeof rule.group === "string" && rule.group !== "" ? ["group", rule.group] : ["rule", name];
}

const SERVER = ["listen", "protocol", "group", "enabled", "terminate_on_disable", "half_close", "connection_timeout", "connect_retries", "max_connections"];
const SERVER_OF_GROUP = ["connection_failure_limit"];
const SERVERS = ["members", "agents_may_join", "slow_start", "panic_threshold", "max_queue"];
const ALGORITHM = ["strategy", "granularity", "adaptive", "load", "load_max_age", "hash_key", "late_binding", "rebind_interval", "alert"];
const KEEPALIVE = ["health_check", "ejection"];

interface TabSpec { id: string; label: string; body: () => ComponentChildren }

function Item({ kind, name, tab }: { kind: string; name: string; tab: string | undefined }): JSX.Element {
  const path: Path = [kind, name];
  const item = at(values.value, path) as { [key: string]: Json };
  const home = kind === "rule" ? groupHome(name, item) : path;
  const shared = kind === "rule" && home[0] === "group";
  const note = shared && <p class="muted note">These are settings of group <a href={href("config", "group", String(home[1]))}>{home[1]}</a>; they count for each rule that uses it.</p>;
  const noGroup = shared && !isTable(at(values.value, home)) ? <p class="problem"><Icon name="warn" size={13} />There is no group “{home[1]}”. <a href={href("config", "new", "group")}>Create it</a>, or remove the key “group” to give the rule members of its own.</p> : null;
  const groupKeys = (keys: string[]) => <>{note}{noGroup ?? <Fields path={home} keys={keys} />}</>;
  const groupTable = schema.value!.tables.find((table) => table.header === "[group.NAME]")!.keys.map((key) => key.name);
  const used = [...SERVER_OF_GROUP, ...SERVERS, ...ALGORITHM, ...KEEPALIVE];
  const tabs: TabSpec[] =
    kind === "rule"
      ? [
          { id: "server", label: "Server", body: () => <><Rename kind={kind} name={name} /><Fields path={path} keys={SERVER} />{note}{noGroup ?? <Fields path={home} keys={SERVER_OF_GROUP} />}</> },
          { id: "servers", label: "Real servers", body: () => groupKeys(SERVERS) },
          { id: "algorithm", label: "Algorithm", body: () => groupKeys(ALGORITHM) },
          { id: "keepalive", label: "Keep-alive", body: () => groupKeys(KEEPALIVE) },
          { id: "more", label: "More", body: () => <Fields path={path} skip={[...SERVER, ...(shared ? groupTable.filter((key) => !(key in item)) : used)]} /> },
        ]
      : kind === "group"
        ? [
            { id: "servers", label: "Members", body: () => <><Rename kind={kind} name={name} /><Fields path={path} keys={SERVERS} /></> },
            { id: "algorithm", label: "Strategy", body: () => <Fields path={path} keys={ALGORITHM} /> },
            { id: "keepalive", label: "Health", body: () => <Fields path={path} keys={[...KEEPALIVE, ...SERVER_OF_GROUP]} /> },
            { id: "more", label: "More", body: () => <Fields path={path} skip={used} /> },
          ]
        : [{ id: "all", label: "Settings", body: () => <><Rename kind={kind} name={name} /><Fields path={path} skip={["class"]} />{kind === "cluster" && <Classes name={name} />}</> }];
  const current = tabs.find((known) => known.id === tab) ?? tabs[0]!;
  const users = kind === "group" ? Object.entries((values.value.rule as Record<string, Json> | undefined) ?? {}).filter(([, rule]) => JSON.stringify(rule).includes(`"${name}"`)).map(([rule]) => rule) : [];
  return (
    <Panel
      title={<>{kind.charAt(0).toUpperCase() + kind.slice(1)} <span class="mono">{name}</span></>}
      actions={
        <>
          {kind === "rule" && <button type="button" class="button small" disabled={!may("administer")} onClick={() => setValue([...path, "enabled"], item.enabled === false ? undefined : false)}>{item.enabled === false ? "Enable" : "Disable"}</button>}
          {kind === "group" && <a class="button small" href={href("groups", name)}>Live</a>}
          {kind === "rule" && at(base.value?.values, path) !== undefined && <a class="button small" href={`/v1/config/export/${part(name)}/file`} download={`${name}.toml`}>Export</a>}
          <button type="button" class="button small" disabled={!may("administer")} onClick={() => {
            const copy = freeName(`${name}-copy`, Object.keys(values.peek()[kind] as object));
            setValue([kind, copy], structuredClone(item));
            go("config", kind, copy);
          }}>Duplicate</button>
          <button type="button" class="button small danger" disabled={!may("administer")} onClick={() => void (async () => {
            if (users.length && !(await confirm(`Delete group “${name}”?`, `The group is used by ${users.join(", ")}. You can apply the change only when nothing uses the group.`, "Delete"))) return;
            removeTable(path);
            go("config");
          })()}><Icon name="trash" size={13} />Delete</button>
        </>
      }
    >
      <div class="body">
        {tabs.length > 1 && <SubTabs tabs={tabs} current={current.id} onChange={(id) => go("config", kind, name, ...(id === tabs[0]!.id ? [] : [id]))} label={`Parts of ${kind} ${name}`} />}
        {tabs.length > 1 ? <div role="tabpanel" id="part-panel" aria-labelledby={`part-${current.id}`}>{current.body()}</div> : current.body()}
      </div>
    </Panel>
  );
}

function SubTabs({ tabs, current, onChange, label }: { tabs: TabSpec[]; current: string; onChange: (id: string) => void; label: string }): JSX.Element {
  const ref = useRef<HTMLDivElement>(null);
  const choose = (index: number) => {
    const tab = tabs[(index + tabs.length) % tabs.length]!;
    onChange(tab.id);
    (ref.current?.children[(index + tabs.length) % tabs.length] as HTMLElement | undefined)?.focus();
  };
  return (
    <div ref={ref} class="tabs" role="tablist" aria-label={label} onKeyDown={(event) => {
      const i = tabs.findIndex((tab) => tab.id === current);
      if (event.key === "ArrowRight") choose(i + 1);
      else if (event.key === "ArrowLeft") choose(i - 1);
      else return;
      event.preventDefault();
    }}>
      {tabs.map((tab) => <button key={tab.id} type="button" role="tab" id={`part-${tab.id}`} aria-controls="part-panel" aria-selected={tab.id === current} tabIndex={tab.id === current ? 0 : -1} onClick={() => onChange(tab.id)}>{tab.label}</button>)}
    </div>
  );
}

const NAME = /^[A-Za-z0-9._-]{1,64}$/;

function Rename({ kind, name }: { kind: string; name: string }): JSX.Element {
  const [text, setText] = useState(name);
  const [wrong, setWrong] = useState("");
  const taken = Object.keys((values.value[kind] as object | undefined) ?? {});
  const save = () => {
    const to = text.trim();
    if (to === name) return;
    if (!NAME.test(to)) return setWrong("1 to 64 letters, digits, “-”, “_” and “.”");
    if (taken.includes(to)) return setWrong(`there is a ${kind} “${to}” already`);
    rename([kind, name], to);
    go("config", kind, to);
  };
  return (
    <form class="field" onSubmit={(event) => { event.preventDefault(); save(); }}>
      <label class="name" for="item-name">name</label>
      <div>
        <div class="control">
          <input id="item-name" type="text" value={text} spellcheck={false} disabled={!may("administer")} aria-invalid={wrong !== ""} aria-describedby="item-name-help" onInput={(event) => { setText(event.currentTarget.value); setWrong(""); }} />
          <button type="submit" class="button small" disabled={text.trim() === name || !may("administer")}>Rename</button>
        </div>
        <div id="item-name-help">
          {wrong && <p class="problem"><Icon name="warn" size={13} />{wrong}</p>}
          <p class="help">{kind === "group" ? "Rules and clusters that use the group get the new name, too." : "Metrics, logs and the API use this name."}</p>
        </div>
      </div>
    </form>
  );
}

function Classes({ name }: { name: string }): JSX.Element {
  const classes = at(values.value, ["cluster", name, "class"]);
  const names = isTable(classes) ? Object.keys(classes) : [];
  const [fresh, setFresh] = useState("");
  return (
    <>
      <h3 class="part">Classes of clients</h3>
      {names.map((item) => (
        <div key={item} class="sub">
          <h3>{item}<button type="button" class="button icon quiet" disabled={!may("administer")} aria-label={`Remove class ${item}`} onClick={() => removeTable(["cluster", name, "class", item])}><Icon name="trash" size={14} /></button></h3>
          <Fields path={["cluster", name, "class", item]} />
        </div>
      ))}
      <form class="actions add" onSubmit={(event) => { event.preventDefault(); if (NAME.test(fresh) && !names.includes(fresh)) { setValue(["cluster", name, "class", fresh], {}); setFresh(""); } }}>
        <input type="text" aria-label="Name of a new class" placeholder="name of a class" value={fresh} disabled={!may("administer")} onInput={(event) => setFresh(event.currentTarget.value)} />
        <button type="submit" class="button small" disabled={!NAME.test(fresh) || names.includes(fresh) || !may("administer")}><Icon name="plus" size={13} />Add a class</button>
      </form>
    </>
  );
}

function Single({ name }: { name: string }): JSX.Element {
  const there = name in values.value;
  const table = tableAt(schema.value!, [name]);
  return (
    <Panel title={name === "defaults" ? "Defaults of all rules and groups" : (SINGLE_LABELS[name] ?? name)} actions={there && <button type="button" class="button small danger" disabled={!may("administer")} onClick={() => removeTable([name])}><Icon name="trash" size={13} />Remove</button>}>
      <div class="body">
        <p class="help">{name === "defaults" ? "Values of the keys that a rule or group does not set." : table && <Prose text={table.meaning} />}</p>
        {there ? <Fields path={[name]} /> : (
          <div class="empty">
            <strong>Not set</strong>{name === "defaults" ? "The defaults of the reference apply." : "The file has no such table."}
            <p><button type="button" class="button" disabled={!may("administer")} onClick={() => setValue([name], {})}>Set up</button></p>
          </div>
        )}
      </div>
    </Panel>
  );
}

function Top(): JSX.Element {
  const table = schema.value!.tables.find((known) => known.header === "")!;
  return <Panel title="General"><div class="body"><p class="help"><Prose text={table.meaning} /></p><Fields path={[]} keys={table.keys.map((key) => key.name)} /></div></Panel>;
}

function NewItem({ kind }: { kind: string }): JSX.Element {
  const [name, setName] = useState("");
  const [listen, setListen] = useState("");
  const [from, setFrom] = useState("");
  const [members, setMembers] = useState("");
  const [protocol, setProtocol] = useState("http");
  const [wrong, setWrong] = useState("");
  const taken = Object.keys((values.value[kind] as object | undefined) ?? {});
  const groups = Object.keys((values.value.group as object | undefined) ?? {});
  const create = () => {
    if (!NAME.test(name)) return setWrong("A name has 1 to 64 letters, digits, “-”, “_” and “.”.");
    if (taken.includes(name)) return setWrong(`There is a ${kind} “${name}” already.`);
    const list = members.split(/[\s,]+/).filter(Boolean);
    const item: { [key: string]: Json } = {};
    if (kind === "rule") {
      item.listen = listen.includes(",") ? listen.split(",").map((text) => text.trim()) : listen.trim();
      if (protocol !== "http") item.protocol = protocol;
      if (from) item.group = from;
      else item.members = list;
    } else if (kind === "group") item.members = list;
    else if (kind === "cluster") Object.assign(item, { group: from || (groups[0] ?? ""), hosts: listen.split(/[\s,]+/).filter(Boolean) });
    setValue([kind, name], item);
    go("config", kind, name);
  };
  const field = (id: string, label: string, value: string, set: (text: string) => void, help: string, hint: string) => (
    <div class="field">
      <label class="name" for={id}>{label}</label>
      <div>
        <div class="control"><input id={id} type="text" value={value} placeholder={hint} spellcheck={false} autocomplete="off" onInput={(event) => { set(event.currentTarget.value); setWrong(""); }} /></div>
        <p class="help">{help}</p>
      </div>
    </div>
  );
  return (
    <Panel title={`New ${kind}`}>
      <form class="body" onSubmit={(event) => { event.preventDefault(); create(); }}>
        {field("new-name", "name", name, setName, kind === "location" ? "The name of a location: the key “location” of members, by default their host." : "Metrics, logs and the API use this name.", kind === "rule" ? "shop" : "")}
        {kind === "rule" && field("new-listen", "listen", listen, setListen, "Where clients connect: an IP address and a port. Several are separated by commas.", "0.0.0.0:80")}
        {kind === "rule" && (
          <div class="field">
            <label class="name" for="new-protocol">protocol</label>
            <div class="control"><select id="new-protocol" value={protocol} onChange={(event) => setProtocol(event.currentTarget.value)}>{["http", "tcp", "udp", "ftp"].map((word) => <option key={word}>{word}</option>)}</select></div>
          </div>
        )}
        {kind === "cluster" && field("new-listen", "hosts", listen, setListen, "The host names of the site.", "www.example.org")}
        {(kind === "rule" || kind === "cluster") && (
          <div class="field">
            <label class="name" for="new-group">members</label>
            <div class="control"><select id="new-group" value={from} onChange={(event) => setFrom(event.currentTarget.value)}>{kind === "rule" && <option value="">of its own</option>}{groups.map((group) => <option key={group} value={group}>those of group {group}</option>)}</select></div>
          </div>
        )}
        {(kind === "group" || (kind === "rule" && !from)) && field("new-members", kind === "rule" ? "real servers" : "members", members, setMembers, "Addresses with ports, separated by spaces or commas.", "10.0.0.1:80, 10.0.0.2:80")}
        <p class="problem" role="alert">{wrong}</p>
        <div class="actions"><button type="submit" class="button primary" disabled={!may("administer")}>Create</button><span class="muted">Nothing is in force until you apply it.</span></div>
      </form>
    </Panel>
  );
}

/** Where a problem's field is. */
function placeOf(problem: Problem): string {
  const [kind = "", name = ""] = sameKey(problem.key).split(/[.[]/);
  if (NAMED.some((known) => known.id === kind)) {
    // A name may have dots: the longest that is there.
    const names = Object.keys((values.value[kind] as object | undefined) ?? {}).filter((known) => sameKey(problem.key).startsWith(`${kind}.${known}`)).sort((a, b) => b.length - a.length);
    return href("config", kind, names[0] ?? name);
  }
  return kind in values.value || singles().includes(kind) ? href("config", "table", kind) : href("config", "top");
}

function ApplyBar(): JSX.Element | null {
  const [open, setOpen] = useState(false);
  const [all, setAll] = useState(false);
  const count = edits.value.length;
  if (count === 0 && !open) return null;
  const bad = problems.value.length;
  return (
    <>
      <div class="applybar" role="region" aria-label="Changes that are not applied">
        <strong>{plural(count, "change")}</strong>
        <span role="status" class="grow">
          {checkError.value ? <span class="problem"><Icon name="warn" size={13} />{words(checkError.value)}</span>
            : checking.value ? <span class="muted">checking …</span>
            : bad ? <button type="button" class="plain problem" aria-expanded={all} onClick={() => setAll(!all)}><Icon name="warn" size={13} />{plural(bad, "problem")}: {problems.value[0]!.key} {problems.value[0]!.message}</button>
            : <span class="ok">valid{warnings.value.length ? ` · ${warnings.value.join("; ")}` : ""}{needsRestart.value.length ? " · some changes need a restart" : ""}</span>}
        </span>
        <button type="button" class="button" onClick={() => void (async () => { if (await confirm("Discard your changes?", `${plural(count, "change")} would be lost.`, "Discard")) discard(); })()}>Discard</button>
        <button type="button" class="button primary" disabled={bad > 0 || checking.value || !may("administer")} onClick={() => setOpen(true)}>Review and apply …</button>
        {all && bad > 0 && <ul class="problems wide-problems">{problems.value.map((problem) => <li key={problem.key + problem.message}><a href={placeOf(problem)}>{problem.key || `line ${problem.line}`}</a>: {problemText(problem)}</li>)}</ul>}
      </div>
      {open && <ApplyDialog draft={{ edits: edits.value }} onClose={() => setOpen(false)} onDone={discard} />}
    </>
  );
}

// The text

function TextView({ known }: { known: Config }): JSX.Element {
  const query = route.value.query.get("upload");
  const [text, setText] = useState(known.text);
  const [from, setFrom] = useState(known.text);
  const [found, setFound] = useState<Problem[]>([]);
  const [state, setState] = useState<"valid" | "checking" | "wrong" | "failed">("valid");
  const [error, setError] = useState<unknown>(null);
  const [target, setTarget] = useState<{ line: number } | null>(null);
  const [apply, setApply] = useState<Draft | null>(null);
  const changed = text !== known.text;
  const drafted = edits.value.length > 0;

  useEffect(() => {
    if (!query || uploaded === null) return;
    setText(uploaded);
    uploaded = null;
    tell("Uploaded into the editor. Nothing is in force until you apply it.");
  }, [query]);
  // What was not touched follows the revision in force.
  useEffect(() => {
    if (text === from) setText(known.text);
    setFrom(known.text);
  }, [known.revision]);
  useEffect(() => {
    if (!changed) {
      setFound([]);
      setState("valid");
      return;
    }
    setState("checking");
    let current = true;
    const timer = setTimeout(() => {
      send<Validated>("POST", "/v1/config/validate", { text }).then(
        (answer) => {
          if (!current) return;
          setFound(answer.problems);
          setError(null);
          setState(answer.ok ? "valid" : "wrong");
        },
        (failed) => {
          if (!current) return;
          setError(failed);
          setState("failed");
        },
      );
    }, 350);
    return () => {
      current = false;
      clearTimeout(timer);
    };
  }, [text, changed]);

  const marks = new Map(found.filter((problem) => problem.line !== null).map((problem) => [problem.line!, problemText(problem)]));
  return (
    <div class="stack">
      {drafted && <p class="banner warn"><Icon name="warn" />The forms have changes that are not applied; this text does not have them. <a href={href("config")}>To the forms</a></p>}
      <TextEditor value={text} onChange={setText} marks={marks} disabled={!may("administer")} goTo={target} />
      <div class="actions">
        <button type="button" class="button primary" disabled={!changed || state !== "valid" || !may("administer")} onClick={() => setApply({ text })}>Review and apply …</button>
        <button type="button" class="button" disabled={!changed} onClick={() => setText(known.text)}>Discard</button>
        <span role="status">{!changed ? <span class="muted">Same as in force</span> : state === "checking" ? <span class="muted">checking …</span> : state === "failed" ? <span class="problem">{words(error)}</span> : state === "wrong" ? <span class="problem"><Icon name="warn" size={13} />{plural(found.length, "problem")}</span> : <span class="ok">valid</span>}</span>
      </div>
      {found.length > 0 && (
        <ul class="problems" aria-label="Problems">
          {found.map((problem) => (
            <li key={`${problem.line}${problem.key}${problem.message}`} class="problem">
              <button type="button" class="plain" onClick={() => setTarget({ line: problem.line ?? 1 })}>Line {problem.line ?? "?"}</button>
              <span><code>{problem.key}</code> {problemText(problem)}</span>
            </li>
          ))}
        </ul>
      )}
      {apply && <ApplyDialog draft={apply} onClose={() => setApply(null)} onDone={() => setFrom(text)} />}
    </div>
  );
}

// The history

export const HOW: Record<string, string> = { start: "start", file: "file changed", signal: "signal", put: "text", patch: "forms", undo: "undo", restore: "restored", store: "store" };

function HistoryView({ known }: { known: Config }): JSX.Element {
  const list = useAnswer<HistoryEntry[]>("/v1/config/history", 0, [known.revision, known.generation]);
  const [open, setOpen] = useState<HistoryEntry | null>(null);
  if (list.error && !list.data) return <Failed error={list.error} retry={list.again} />;
  if (!list.data) return <Loading />;
  return (
    <Panel title="Configurations that were in force" actions={<button type="button" class="button small" disabled={list.data.length < 2 || !may("administer")} onClick={() => void (async () => { if (await confirm("Undo the last change?", "The previous configuration comes into force. You can undo this change, too.", "Undo", false)) await undo(known.revision); })()}><Icon name="undo" size={13} />Undo the last change</button>}>
      <Scroll label="History of the configuration">
        <table>
          <thead><tr><th scope="col">When</th><th scope="col">Who</th><th scope="col">How</th><th scope="col">Why</th><th scope="col">Revision</th><th scope="col"><span class="sr">Actions</span></th></tr></thead>
          <tbody>
            {list.data.map((entry, i) => (
              <tr key={`${entry.generation}-${entry.revision}`}>
                <th scope="row" class="nowrap">{when(entry.at)}</th>
                <td>{entry.who || <span class="muted">–</span>}{entry.from && <span class="muted small"> {entry.from}</span>}</td>
                <td>{HOW[entry.how] ?? entry.how}</td>
                <td>{entry.comment || <span class="muted">–</span>}</td>
                <td class="nowrap"><code>{entry.revision.slice(0, 8)}</code> <span class="muted">({entry.generation})</span>{entry.revision === known.revision && (i === list.data!.findIndex((newest) => newest.revision === entry.revision) ? <> <span class="tag ok">in force</span></> : <> <span class="muted">same as in force</span></>)}</td>
                <td><button type="button" class="button small" onClick={() => setOpen(entry)} aria-label={`Show revision ${entry.revision.slice(0, 8)} of ${when(entry.at)}`}>Show</button></td>
              </tr>
            ))}
          </tbody>
        </table>
      </Scroll>
      {open && <RevisionDialog entry={open} known={known} onClose={() => setOpen(null)} />}
    </Panel>
  );
}

function RevisionDialog({ entry, known, onClose }: { entry: HistoryEntry; known: Config; onClose: () => void }): JSX.Element {
  const answer = useAnswer<{ revision: string; text: string; diff: string }>(`/v1/config/history/${part(entry.revision)}`);
  const restore = async () => {
    try {
      const done = await send<Applied>("POST", "/v1/config/restore", { revision: entry.revision }, known.revision);
      mine.add(done.revision);
      tell(done.in_effect ? `Restored: configuration ${done.generation} is in force` : "Restored: the store has the configuration", { label: "Undo", run: () => void undo(done.revision) }, "configuration");
      await loadBase();
      onClose();
    } catch (error) {
      complain(error);
    }
  };
  const current = entry.revision === known.revision;
  return (
    <Dialog title={`Revision ${entry.revision.slice(0, 8)}, ${when(entry.at)}`} onClose={onClose} wide
      footer={<><button type="button" class="button" onClick={onClose}>Close</button>{!current && <button type="button" class="button primary" disabled={!may("administer")} onClick={() => void restore()}>Restore this revision</button>}</>}>
      {answer.error ? <Failed error={answer.error} retry={answer.again} /> : !answer.data ? <Loading /> : (
        <>
          <h3>{current ? "In force" : "Changes from this revision to the configuration in force"}</h3>
          {!current && <Diff text={answer.data.diff} />}
          <details open={current}><summary>Text of the revision</summary><pre class="diff" tabIndex={0}>{answer.data.text.split("\n").map((line, i) => <span key={i}>{line || " "}</span>)}</pre></details>
        </>
      )}
    </Dialog>
  );
}

// The reference

function Reference(): JSX.Element {
  const [find, setFind] = useState(route.value.query.get("find") ?? "");
  const query = route.value.query.get("find");
  useEffect(() => {
    if (query !== null) setFind(query);
  }, [query]);
  const wanted = find.trim().toLowerCase();
  const hit = (text: string) => text.toLowerCase().includes(wanted);
  const tables = schema.value!.tables.map((table) => ({ ...table, keys: table.keys.filter((key) => !wanted || hit(key.name) || hit(table.header) || (key.alias !== null && hit(key.alias))) })).filter((table) => table.keys.length);
  const strategies = schema.value!.strategies.filter((known) => !wanted || hit(known.name) || known.params.some((param) => hit(param.name)));
  return (
    <div class="stack">
      <div class="actions"><input type="search" aria-label="Filter keys and strategies" placeholder="Filter keys and strategies" value={find} onInput={(event) => setFind(event.currentTarget.value)} /><span class="muted">{plural(tables.reduce((sum, table) => sum + table.keys.length, 0), "key")}, {plural(strategies.length, "strategy", "strategies")}</span></div>
      {tables.length === 0 && strategies.length === 0 && <div class="panel"><Empty title="Nothing matches" /></div>}
      {strategies.length > 0 && (
        <Panel title="Strategies">
          <Scroll label="Strategies">
            <table>
              <thead><tr><th scope="col">Strategy</th><th scope="col">Meaning</th><th scope="col">Parameters</th></tr></thead>
              <tbody>{strategies.map((known) => <tr key={known.name}><th scope="row" class="mono">{known.name}{known.default && <> <span class="tag accent">default</span></>}</th><td><Prose text={known.meaning} /></td><td class="small">{known.params.map((param) => `${param.name} ${param.min}–${param.max}${param.unit ? ` ${param.unit}` : ""} (${param.default})`).join(", ") || "–"}</td></tr>)}</tbody>
            </table>
          </Scroll>
        </Panel>
      )}
      {tables.map((table) => (
        <Panel key={table.header} title={<code>{table.header || "at the top"}</code>}>
          <Scroll label={`Keys of ${table.header || "the top"}`}>
            <table>
              <thead><tr><th scope="col">Key</th><th scope="col">Allowed</th><th scope="col">Default</th><th scope="col">Meaning</th></tr></thead>
              <tbody>{table.keys.map((key) => <tr key={key.name}><th scope="row" class="mono">{key.name}{key.alias && <span class="muted small"> or {key.alias}</span>}</th><td class="small">{key.allowed}</td><td class="mono small">{key.default ?? "–"}</td><td><Prose text={key.meaning} /></td></tr>)}</tbody>
            </table>
          </Scroll>
        </Panel>
      ))}
    </div>
  );
}


