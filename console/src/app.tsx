// The frame around all pages: navigation, search, the state of the link.

import { effect, signal } from "@preact/signals";
import type { JSX } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { get, send, session, toLogin } from "./api";
import { duration } from "./format";
import { levelOf } from "./health";
import { change, heard, link, mine, nextTry, retryNow, sample, start } from "./live";
import { AuditPage } from "./pages/audit";
import { ConfigPage, HOW } from "./pages/config";
import { GroupPage } from "./pages/group";
import { GroupsPage } from "./pages/groups";
import { MonitorPage } from "./pages/monitor";
import { OverviewPage } from "./pages/overview";
import { WhatIfPage } from "./pages/whatif";
import { go, href, route } from "./router";
import { Search } from "./search";
import { setTheme, theme, type Theme } from "./theme";
import type { Session } from "./types";
import { Icon, type IconName } from "./ui/icons";
import { complain, Failed, Loading, Question, tell, Toasts } from "./ui/kit";

const failure = signal<unknown>(null);
const now = signal(Date.now());

export async function begin(): Promise<void> {
  try {
    const who = await get<Session>("/v1/session");
    session.value = who;
    if (who.login && !who.user && !who.free) return toLogin();
    failure.value = null;
    start();
  } catch (error) {
    failure.value = error;
    setTimeout(() => void begin(), 3000);
  }
}

setInterval(() => (now.value = Date.now()), 1000);

const PAGES: { id: string; label: string; icon: IconName; page: () => JSX.Element }[] = [
  { id: "overview", label: "Overview", icon: "overview", page: OverviewPage },
  { id: "groups", label: "Groups", icon: "groups", page: () => (route.value.parts[1] ? <GroupPage key={route.value.parts[1]} name={route.value.parts[1]} /> : <GroupsPage />) },
  { id: "monitor", label: "Monitoring", icon: "monitor", page: MonitorPage },
  { id: "config", label: "Configuration", icon: "config", page: ConfigPage },
  { id: "whatif", label: "What if", icon: "whatif", page: WhatIfPage },
  { id: "audit", label: "Audit", icon: "audit", page: AuditPage },
];

export function App(): JSX.Element {
  if (!session.value) return <main class="boot">{failure.value ? <Failed error={failure.value} retry={() => void begin()} /> : <Loading what="Asking the balancer …" />}</main>;
  const id = route.value.parts[0] ?? "overview";
  const page = PAGES.find((known) => known.id === id);
  return (
    <>
      <a class="skip" href="#main" onClick={(event) => { event.preventDefault(); document.getElementById("main")!.focus(); }}>Skip to the content</a>
      <div class={`frame${link.value === "broken" ? " stale" : ""}`}>
        <Top />
        <Nav current={page?.id ?? ""} />
        <main id="main" tabIndex={-1}>
          <LinkBanner />
          {page ? <Page key={page.id} label={page.label} body={page.page} /> : <Failed error={new Error("There is no such page.")} />}
        </main>
      </div>
      <Toasts />
      <Question />
    </>
  );
}

function Page({ label, body: Body }: { label: string; body: () => JSX.Element }): JSX.Element {
  const first = useRef(true);
  useEffect(() => {
    document.title = `${label} · Evenkeel`;
    // Readers of screens hear where they are; not at the first load.
    if (!first.current) document.getElementById("main")?.focus({ preventScroll: true });
    first.current = false;
  }, [label]);
  return <Body />;
}

function Nav({ current }: { current: string }): JSX.Element {
  const groups = sample.value?.groups ?? [];
  const trouble = groups.filter((group) => levelOf(group) !== "ok").length;
  const bad = groups.some((group) => levelOf(group) === "bad");
  return (
    <nav class="nav" aria-label="Pages">
      <ul>
        {PAGES.map(({ id, label, icon }) => (
          <li key={id}>
            <a href={href(id)} aria-current={id === current ? "page" : undefined}>
              <Icon name={icon} size={18} />
              {label}
              {id === "groups" && trouble > 0 && <span class={`tag count ${bad ? "bad" : "warn"}`}>{trouble}<span class="sr"> with trouble</span></span>}
            </a>
          </li>
        ))}
      </ul>
    </nav>
  );
}

const LINK_WORDS = { connecting: "Connecting", live: "Live", broken: "Disconnected" } as const;
const THEMES: Record<Theme, { next: Theme; word: string }> = { auto: { next: "dark", word: "as the system" }, dark: { next: "light", word: "dark" }, light: { next: "auto", word: "light" } };

function Top(): JSX.Element {
  const who = session.value!;
  const mode = THEMES[theme.value];
  return (
    <header class="top">
      <a class="brand" href={href("overview")} aria-label="Evenkeel, to the overview">
        <img src="./icon.svg" alt="" width="24" height="24" />
        <span>Evenkeel</span>
      </a>
      <span class={`link ${link.value}`}><i class="dot" />{LINK_WORDS[link.value]}</span>
      <Search />
      <button type="button" class="button quiet icon" title={`Colours: ${mode.word}`} aria-label={`Colours: ${mode.word}. Change to ${THEMES[mode.next].word}`} onClick={() => setTheme(mode.next)}><Icon name="theme" /></button>
      {who.user && !who.free && (
        <>
          <a class="wide nowrap" href={href("audit")} title={`Role: ${who.role}`}>{who.user}</a>
          <button type="button" class="button small wide" onClick={() => void logout()}>Log out</button>
        </>
      )}
    </header>
  );
}

export async function logout(): Promise<void> {
  try {
    await send("POST", "/v1/logout", {});
    toLogin();
  } catch (error) {
    complain(error);
  }
}

/** Says at once when the stream is broken, how old what one sees is, and when it is tried again. */
function LinkBanner(): JSX.Element {
  const broken = link.value === "broken";
  const wait = Math.max(0, Math.ceil((nextTry.value - now.value) / 1000));
  return (
    <div role="status" aria-live="assertive">
      {broken && (
        <div class="banner over" id="disconnected">
          <Icon name="warn" size={18} />
          <strong>No connection to the balancer.</strong>
          <span aria-hidden="true">
            {heard.value > 0 ? `What you see is ${duration(Math.max(1, Math.round((now.value - heard.value) / 1000)))} old. ` : ""}
            {wait > 0 ? `Next attempt in ${wait} s.` : "Connecting …"}
          </span>
          <button type="button" class="button small" onClick={retryNow}>Connect now</button>
        </div>
      )}
    </div>
  );
}

/** Somebody has changed the configuration: said on each page. */
effect(() => {
  const last = change.value;
  if (!last?.revision || Date.now() / 1000 - last.at > 60) return;
  // The answer to a change of this page may come after the event.
  setTimeout(() => {
    if (mine.has(last.revision)) return;
    tell(`Configuration ${last.generation} is in force${last.who ? `, by ${last.who}` : ""} (${HOW[last.how] ?? last.how})`, { label: "History", run: () => go("config", "history") }, "configuration");
  }, 800);
});
