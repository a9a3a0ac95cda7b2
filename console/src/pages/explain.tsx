// Why requests go where they go: the last decision with its reasons, and the one that would be taken now.

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { part, words } from "../api";
import { duration, score } from "../format";
import type { Explained } from "../types";
import { Empty, Failed, Health, Loading, Panel, Scroll, useAnswer } from "../ui/kit";

export function Explain({ group }: { group: string }): JSX.Element {
  const [typed, setTyped] = useState("");
  const [client, setClient] = useState("");
  const base = `/v1/groups/${part(group)}/explain`;
  const answer = useAnswer<{ last: Explained | null; next: Explained }>(client ? `${base}?client=${part(client)}` : base, 2);
  return (
    <div class="stack">
      <form class="actions" onSubmit={(event) => { event.preventDefault(); setClient(typed.trim()); }}>
        <label for="client">What would happen now for the client</label>
        <input id="client" placeholder="192.0.2.7" size={24} spellcheck={false} value={typed} aria-invalid={answer.error !== null && client !== ""} aria-describedby="client-problem" onInput={(event) => setTyped(event.currentTarget.value)} />
        <button type="submit" class="button">Ask</button>
        {client && <button type="button" class="button quiet" onClick={() => { setClient(""); setTyped(""); }}>Any client</button>}
        <span id="client-problem" class="problem" role="alert">{answer.error !== null && client ? words(answer.error) : ""}</span>
      </form>
      {answer.error && !answer.data && !client ? <Failed error={answer.error} retry={answer.again} /> : null}
      <div class="stack">
        <Decision title={client ? `Now, for ${client}` : "Now, for the next request"} decision={answer.data?.next ?? null} loading={!answer.data && !answer.error} hint="The question binds no client and takes no member's turn." />
        <Decision title="The last decision" decision={answer.data?.last ?? null} loading={!answer.data && !answer.error} hint="About once a second a real decision is kept with its reasons." />
      </div>
    </div>
  );
}

function Decision({ title, decision, loading, hint }: { title: string; decision: Explained | null; loading: boolean; hint: string }): JSX.Element {
  const scores = decision?.candidates.map((candidate) => candidate.score).filter((score): score is number => score !== null && Number.isFinite(score)) ?? [];
  const max = Math.max(0, ...scores);
  return (
    <Panel title={title} live actions={decision && <span class="muted small">{decision.strategy}{decision.age_seconds > 0.001 && `, ${duration(decision.age_seconds)} ago`}</span>}>
      {loading ? <Loading /> : !decision ? <Empty title="No decision yet">A decision appears after the first request. {hint}</Empty> : (
        <>
          <div class="body">
            {decision.chosen ? <Health level="ok">chosen: <strong>{decision.chosen}</strong></Health> : <Health level="bad">{decision.error ?? "no member was chosen"}</Health>}
            {decision.notes.map((note) => <p key={note}>{note}</p>)}
            <p class="muted small">{hint} The lowest score wins.</p>
          </div>
          <Scroll label={`Candidates: ${title}`}>
            <table>
              <thead><tr><th scope="col">Candidate</th><th scope="col" class="num">Score</th><th scope="col"><span class="sr">Score as a bar</span></th><th scope="col">Why</th></tr></thead>
              <tbody>
                {decision.candidates.slice(0, 200).map((candidate) => (
                  <tr key={candidate.member} class={candidate.member === decision.chosen ? "chosen" : ""}>
                    <th scope="row" class="nowrap">{candidate.member}{candidate.member === decision.chosen && <> <span class="tag ok">chosen</span></>}</th>
                    <td class="num">{score(candidate.score)}</td>
                    <td><span class="gauge" aria-hidden="true"><svg width="64" height="8"><rect width={candidate.score !== null && max > 0 ? Math.max(1, (64 * candidate.score) / max) : 0} height="8" /></svg></span></td>
                    <td>{candidate.verdict}</td>
                  </tr>
                ))}
              </tbody>
            </table>
          </Scroll>
          {decision.candidates.length > 200 && <p class="body muted">and {decision.candidates.length - 200} more</p>}
        </>
      )}
    </Panel>
  );
}
