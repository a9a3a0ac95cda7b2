// From a draft to a configuration in force: the differences first, and what to do when somebody else was quicker.

import type { ComponentChildren, JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { ApiError, send, words } from "../api";
import { when } from "../format";
import { change, mine } from "../live";
import type { Applied, Diffed, Edit, Import, Json, Problem } from "../types";
import { Icon } from "../ui/icons";
import { Dialog, Failed, Loading, tell } from "../ui/kit";
import { base, loadBase, wordsOf } from "./draft";
import { problemText } from "./fields";
import { brief, keyText } from "./kinds";
import { Diff } from "./text";

export type Draft = { edits: Edit[] } | { text: string } | { import: Import };

interface Conflict { kind: "meanwhile" | "file"; detail: string; diff: string; who: string; at: number | null }

interface ApplyProps {
  draft: Draft;
  onClose: () => void;
  onDone: () => void;
  title?: string;
  /** What else is said of the differences, and asked. */
  more?: (diff: Diffed) => ComponentChildren;
}

export function ApplyDialog({ draft, onClose, onDone, title, more }: ApplyProps): JSX.Element {
  const [diff, setDiff] = useState<Diffed | null>(null);
  const [error, setError] = useState<unknown>(null);
  const [conflict, setConflict] = useState<Conflict | null>(null);
  const [comment, setComment] = useState("");
  const [busy, setBusy] = useState(false);
  const [serial, setSerial] = useState(0);
  const revision = base.value?.revision ?? "";
  // What is said of an image changes while the dialog is open.
  const choices = "import" in draft ? JSON.stringify([draft.import.rename, draft.import.replace]) : "";

  useEffect(() => {
    let current = true;
    setError(null);
    send<Diffed>("POST", "/v1/config/diff", draft).then((answer) => current && setDiff(answer), (failed) => current && setError(failed));
    return () => {
      current = false;
    };
  }, [serial, choices]);
  useEffect(() => {
    // Somebody else was quicker, while this was looked at.
    const other = change.value;
    if (other?.revision && other.revision !== base.peek()?.revision && !busy) void meanwhile(other.who ?? "", other.at, `revision ${other.revision} is in force`);
  }, [change.value?.revision]);

  const meanwhile = async (who: string, at: number | null, detail: string) => {
    let theirs = "";
    try {
      const before = base.peek();
      if (before) theirs = reverse(await compare(before.text));
    } catch {
      // The words have to do.
    }
    setConflict({ kind: "meanwhile", detail, diff: theirs, who, at });
  };

  const apply = async () => {
    setBusy(true);
    setError(null);
    try {
      const [method, path, what] = "import" in draft ? (["POST", "/v1/config/import", draft.import] as const) : (["text" in draft ? "PUT" : "PATCH", "/v1/config", draft] as const);
      const body = { ...what, ...(comment.trim() ? { comment: comment.trim() } : {}) };
      const done = await send<Applied>(method, path, body, revision);
      mine.add(done.revision);
      onDone();
      await loadBase();
      tell(`${done.in_effect ? `Configuration ${done.generation} is in force` : "The store has the configuration"}${done.notes.length ? `. ${done.notes.join(". ")}` : ""}`, { label: "Undo", run: () => void undo(done.revision) }, "configuration");
      onClose();
    } catch (failed) {
      if (failed instanceof ApiError && failed.status === 412) await meanwhile(String(failed.body.who ?? ""), typeof failed.body.at === "number" ? failed.body.at : null, failed.message);
      else if (failed instanceof ApiError && failed.status === 409 && failed.code === "file_changed") setConflict({ kind: "file", detail: failed.message, diff: String(failed.body.diff ?? ""), who: "", at: null });
      else setError(failed);
    } finally {
      setBusy(false);
    }
  };

  const rebase = async () => {
    await loadBase();
    setConflict(null);
    setDiff(null);
    setError(null);
    setSerial(serial + 1);
  };

  const reload = async () => {
    setBusy(true);
    try {
      await send("POST", "/v1/reload", {});
      await rebase();
    } catch (failed) {
      setConflict(null);
      setError(failed);
    } finally {
      setBusy(false);
    }
  };

  if (conflict)
    return (
      <Dialog title={conflict.kind === "meanwhile" ? "Somebody else has changed the configuration" : "The file differs from the configuration in force"} onClose={onClose} wide
        footer={
          <>
            <button type="button" class="button" onClick={onClose}>Close, keep my changes here</button>
            {conflict.kind === "meanwhile" ? (
              <button type="button" class="button primary" onClick={() => void rebase()}>{"edits" in draft ? "Put my changes on top of theirs" : "Compare my text with theirs"}</button>
            ) : (
              <button type="button" class="button primary" disabled={busy} onClick={() => void reload()}>Put the file in force, then compare again</button>
            )}
          </>
        }>
        <p>
          <strong>Nothing was overwritten.</strong> {conflict.who && `${conflict.who} applied a change first${conflict.at ? `, ${when(conflict.at)}` : ""}: `}
          {conflict.detail}
        </p>
        <h3>{conflict.kind === "meanwhile" ? "What changed meanwhile" : "Changes in the file that are not in force"}</h3>
        <Diff text={conflict.diff} />
      </Dialog>
    );

  const told = error instanceof ApiError ? (error.body.problems as Problem[] | undefined) : undefined;
  const list = diff && !diff.ok ? diff.problems : (told ?? []);
  return (
    <Dialog title={title ?? "Apply these changes?"} onClose={onClose} onSubmit={() => void apply()} wide
      footer={
        <>
          <button type="button" class="button" onClick={onClose}>Back</button>
          <button type="submit" class="button primary" disabled={!diff?.ok || busy}>{busy ? "Applying …" : "Apply"}</button>
        </>
      }>
      {error !== null && !told && <Failed error={error} />}
      {list.length > 0 && (
        <div class="error-box" role="alert">
          <p>The configuration in force stays unchanged.</p>
          <ul class="problems">{list.map((problem) => <li key={problem.key + problem.message}><code>{problem.key || `line ${problem.line}`}</code>: {problemText(problem)}</li>)}</ul>
        </div>
      )}
      {!diff ? error === null && <Loading what="Comparing …" /> : (
        <>
          {more?.(diff)}
          {diff.needs_restart.length > 0 && <p class="banner warn"><Icon name="warn" />Has no effect until the process is restarted: {diff.needs_restart.map(wordsOf).join("; ")}</p>}
          {diff.changes.length > 0 && (
            <div class="scroll" role="region" aria-label="Values that change" tabIndex={0}>
              <table>
                <thead><tr><th scope="col">Key</th><th scope="col">Before</th><th scope="col">After</th></tr></thead>
                <tbody>
                  {diff.changes.slice(0, 100).map((item) => (
                    <tr key={keyText(item.path)}>
                      <th scope="row" class="mono">{keyText(item.path)}</th>
                      <td>{item.before === null ? <span class="muted">not set</span> : clip(item.before)}</td>
                      <td>{item.after === null ? <span class="muted">removed</span> : clip(item.after)}</td>
                    </tr>
                  ))}
                </tbody>
              </table>
            </div>
          )}
          <Diff text={diff.diff} />
          <label class="stack">Why, for the history<input type="text" maxLength={200} value={comment} onInput={(event) => setComment(event.currentTarget.value)} /></label>
        </>
      )}
    </Dialog>
  );
}

function clip(value: Json): string {
  const text = brief(value);
  return text.length > 140 ? `${text.slice(0, 140)}…` : text;
}

/** What turns the text in force into `text`. */
async function compare(text: string): Promise<string> {
  return (await send<Diffed>("POST", "/v1/config/diff", { text })).diff;
}

/** A difference read the other way round. */
export function reverse(diff: string): string {
  const lines = diff.split("\n").map((line) => {
    if (/^(---|\+\+\+) /.test(line)) return line;
    const place = /^@@ -(\S+) \+(\S+) @@(.*)$/.exec(line);
    if (place) return `@@ -${place[2]} +${place[1]} @@${place[3]}`;
    return line.startsWith("+") ? `-${line.slice(1)}` : line.startsWith("-") ? `+${line.slice(1)}` : line;
  });
  // Removals stand before additions, as one reads them.
  const out: string[] = [];
  let minus: string[] = [];
  let plus: string[] = [];
  const flush = () => {
    out.push(...minus, ...plus);
    minus = [];
    plus = [];
  };
  for (const line of lines) {
    if (/^(---|\+\+\+) /.test(line)) continue;
    if (line.startsWith("-")) minus.push(line);
    else if (line.startsWith("+")) plus.push(line);
    else {
      flush();
      out.push(line);
    }
  }
  flush();
  return out.join("\n");
}

export async function undo(revision: string): Promise<void> {
  try {
    const done = await send<Applied>("POST", "/v1/config/undo", {}, revision);
    mine.add(done.revision);
    tell(done.in_effect ? `Undone: configuration ${done.generation} is in force` : "Undone: the store has the configuration", undefined, "configuration");
    await loadBase();
  } catch (failed) {
    tell(`Not undone: ${words(failed)}`);
  }
}
