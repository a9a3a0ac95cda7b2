// Who is logged in, and what was changed by whom.

import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { session } from "../api";
import { logout } from "../app";
import { when } from "../format";
import { focus } from "../live";
import { Empty, Failed, Health, Loading, Panel, Scroll, useAnswer } from "../ui/kit";

interface Entry { at: number | string; user: string | null; role: string | null; from: string | null; method: string; path: string; status: number; what: string | null }

const ROLES: Record<string, string> = {
  view: "may look at everything, and change nothing",
  operate: "may change what is live: members, weights, strategies, alerts, rules",
  administer: "may change everything, the configuration too",
};

export function AuditPage(): JSX.Element {
  useEffect(() => {
    focus.value = null;
  }, []);
  const answer = useAnswer<Entry[]>("/v1/audit", 5);
  const [find, setFind] = useState("");
  const [reports, setReports] = useState(false);
  const who = session.value!;
  const wanted = find.trim().toLowerCase();
  // Load reports come every second, and would hide what people do.
  const rows = (answer.data ?? []).filter((entry) => reports || !entry.path.endsWith("/loads")).filter((entry) => !wanted || `${entry.user ?? ""} ${entry.from ?? ""} ${entry.method} ${entry.path} ${entry.what ?? ""}`.toLowerCase().includes(wanted));
  return (
    <>
      <div class="page-head"><h1>Audit and session</h1></div>
      <div class="stack">
        <Panel title="This session" pad actions={who.user && !who.free && <button type="button" class="button small" onClick={() => void logout()}>Log out</button>}>
          <dl class="props">
            <dt>User</dt><dd>{who.free || !who.user ? "nobody has to log in: whoever reaches this address may use the console" : who.user}</dd>
            <dt>Role</dt><dd>{who.role ? <>{who.role} <span class="muted">– {ROLES[who.role]}</span></> : "–"}</dd>
          </dl>
        </Panel>
        <Panel title="Changes" actions={<><label class="check"><input type="checkbox" checked={reports} onChange={(event) => setReports(event.currentTarget.checked)} />With load reports</label><input type="search" aria-label="Filter changes" placeholder="Filter" value={find} onInput={(event) => setFind(event.currentTarget.value)} /></>}>
          {answer.error && !answer.data ? <div class="body"><Failed error={answer.error} retry={answer.again} /></div> : answer.at === 0 ? <Loading /> : rows.length === 0 ? <Empty title={wanted ? "Nothing matches" : "Nothing was changed yet"}>{!wanted && "Each change by the API, this console and evenkeel ctl is listed here."}</Empty> : (
            <Scroll label="Changes">
              <table>
                <thead><tr><th scope="col">When</th><th scope="col">Who</th><th scope="col">From</th><th scope="col">What</th><th scope="col">Result</th></tr></thead>
                <tbody>
                  {rows.slice(0, 300).map((entry, i) => (
                    <tr key={`${entry.at}-${i}`}>
                      <th scope="row" class="nowrap">{when(typeof entry.at === "string" ? Date.parse(entry.at) / 1000 : entry.at)}</th>
                      <td>{entry.user || <span class="muted">–</span>}{entry.role && <span class="muted small"> {entry.role}</span>}</td>
                      <td class="nowrap">{entry.from ?? "–"}</td>
                      <td><span class="mono small">{entry.method} {entry.path}</span>{entry.what && entry.what !== "{}" && <div class="small muted">{entry.what}</div>}</td>
                      <td><Health level={entry.status < 400 ? "ok" : "bad"}>{entry.status < 400 ? "done" : `refused (${entry.status})`}</Health></td>
                    </tr>
                  ))}
                </tbody>
              </table>
            </Scroll>
          )}
        </Panel>
      </div>
    </>
  );
}
