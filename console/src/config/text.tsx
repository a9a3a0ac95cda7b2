// The whole file as a text: line numbers, and marks at lines with problems.

import type { JSX } from "preact";
import { useEffect, useRef } from "preact/hooks";

const LINE = 20;

export function TextEditor({ value, onChange, marks, disabled, goTo }: { value: string; onChange: (text: string) => void; marks: Map<number, string>; disabled: boolean; goTo: { line: number } | null }): JSX.Element {
  const gutter = useRef<HTMLDivElement>(null);
  const area = useRef<HTMLTextAreaElement>(null);
  const lines = value.split("\n").length;
  useEffect(() => {
    const field = area.current;
    if (!goTo || !field) return;
    const before = field.value.split("\n").slice(0, goTo.line - 1);
    const from = before.reduce((sum, line) => sum + line.length + 1, 0);
    field.focus();
    field.setSelectionRange(from, from + (field.value.slice(from).indexOf("\n") + 1 || field.value.length));
    field.scrollTop = Math.max(0, (goTo.line - 5) * LINE);
  }, [goTo]);
  return (
    <div class="textedit">
      <div class="gutter" ref={gutter} aria-hidden="true">
        {Array.from({ length: lines }, (_, i) => <div key={i} class={marks.has(i + 1) ? "marked" : ""} title={marks.get(i + 1)}>{i + 1}</div>)}
      </div>
      <textarea
        ref={area} aria-label="Configuration as a text" value={value} spellcheck={false} autocomplete="off" wrap="off" disabled={disabled}
        onInput={(event) => onChange(event.currentTarget.value)}
        onScroll={(event) => { if (gutter.current) gutter.current.scrollTop = event.currentTarget.scrollTop; }}
      />
    </div>
  );
}

export function Diff({ text }: { text: string }): JSX.Element {
  if (!text.trim()) return <p class="muted">No difference.</p>;
  return (
    <pre class="diff" tabIndex={0} role="region" aria-label="Differences">
      {text.replace(/\n$/, "").split("\n").map((line, i) => {
        const kind = /^(---|\+\+\+|@@)/.test(line) ? "place" : line.startsWith("+") ? "plus" : line.startsWith("-") ? "minus" : "";
        return <span key={i} class={kind}>{line || " "}</span>;
      })}
    </pre>
  );
}
