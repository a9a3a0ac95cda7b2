// What pages are made of: dialogs, notices, tabs, states, small charts.

import { signal } from "@preact/signals";
import type { ComponentChildren, JSX } from "preact";
import { useEffect, useId, useLayoutEffect, useRef, useState } from "preact/hooks";
import { get, may, words } from "../api";
import { stateOf } from "../health";
import type { Role } from "../types";
import { Icon, Sign, type Level } from "./icons";

// Notices

interface Toast { id: number; text: string; bad: boolean; about?: string | undefined; action?: { label: string; run: () => void } }
const toasts = signal<Toast[]>([]);
let toastId = 0;

/** A notice replaces an older one about the same, whose Undo would be of something else. */
export function tell(text: string, action?: Toast["action"], about?: string): void {
  if (about) toasts.value = toasts.value.filter((toast) => toast.about !== about);
  show({ id: ++toastId, text, bad: false, about, ...(action ? { action } : {}) }, action ? 10_000 : 5000);
}

export function complain(error: unknown): void {
  show({ id: ++toastId, text: words(error), bad: true }, 12_000);
}

function show(toast: Toast, lasts: number): void {
  toasts.value = [...toasts.value.slice(-2), toast];
  setTimeout(() => dismiss(toast.id), lasts);
}

function dismiss(id: number): void {
  toasts.value = toasts.value.filter((toast) => toast.id !== id);
}

export function Toasts(): JSX.Element {
  return (
    <div class="toasts" role="status" aria-live="polite">
      {toasts.value.map((toast) => (
        <div key={toast.id} class={`toast${toast.bad ? " bad" : ""}`}>
          <span>{toast.text}</span>
          {toast.action && (
            <button type="button" onClick={() => { toast.action!.run(); dismiss(toast.id); }}>
              {toast.action.label}
            </button>
          )}
          <button type="button" aria-label="Dismiss" onClick={() => dismiss(toast.id)}>×</button>
        </div>
      ))}
    </div>
  );
}

// Dialogs: the browser keeps the focus inside, and gives it back.

export function Dialog({ title, onClose, children, footer, wide, onSubmit }: { title: string; onClose: () => void; children: ComponentChildren; footer?: ComponentChildren; wide?: boolean; onSubmit?: () => void }): JSX.Element {
  const ref = useRef<HTMLDialogElement>(null);
  const id = useId();
  useLayoutEffect(() => {
    const before = document.activeElement as HTMLElement | null;
    const dialog = ref.current!;
    dialog.showModal();
    return () => {
      dialog.close();
      before?.focus?.();
    };
  }, []);
  const head = (
    <header>
      <h2 id={id}>{title}</h2>
      <button type="button" class="button quiet icon" aria-label="Close" onClick={onClose}><Icon name="close" /></button>
    </header>
  );
  const rest = (
    <>
      {head}
      <div class="body" tabIndex={-1}>{children}</div>
      {footer && <footer>{footer}</footer>}
    </>
  );
  return (
    <dialog ref={ref} class={wide ? "wide" : ""} aria-labelledby={id} onCancel={(event) => { event.preventDefault(); onClose(); }} onClick={(event) => event.target === ref.current && onClose()}>
      {onSubmit ? <form onSubmit={(event) => { event.preventDefault(); onSubmit(); }}>{rest}</form> : <div class="sheet">{rest}</div>}
    </dialog>
  );
}

const question = signal<{ title: string; text: string; yes: string; danger: boolean; answer: (yes: boolean) => void } | null>(null);

export function confirm(title: string, text: string, yes: string, danger = true): Promise<boolean> {
  return new Promise((answer) => {
    question.value = { title, text, yes, danger, answer };
  });
}

export function Question(): JSX.Element | null {
  const asked = question.value;
  if (!asked) return null;
  const done = (yes: boolean) => {
    question.value = null;
    asked.answer(yes);
  };
  return (
    <Dialog title={asked.title} onClose={() => done(false)} onSubmit={() => done(true)}
      footer={<>
        <button type="button" class="button" onClick={() => done(false)}>Cancel</button>
        <button type="submit" class={`button ${asked.danger ? "danger" : "primary"}`}>{asked.yes}</button>
      </>}>
      <p>{asked.text}</p>
    </Dialog>
  );
}

// Tabs

export function Tabs({ label, tabs, current, onChange }: { label: string; tabs: { id: string; label: string; mark?: ComponentChildren }[]; current: string; onChange: (id: string) => void }): JSX.Element {
  const ref = useRef<HTMLDivElement>(null);
  const move = (event: KeyboardEvent) => {
    const at = tabs.findIndex((tab) => tab.id === current);
    const to = event.key === "ArrowRight" ? at + 1 : event.key === "ArrowLeft" ? at - 1 : event.key === "Home" ? 0 : event.key === "End" ? tabs.length - 1 : -1;
    if (to < 0 && event.key !== "ArrowLeft") return;
    event.preventDefault();
    const index = (to + tabs.length) % tabs.length;
    onChange(tabs[index]!.id);
    (ref.current?.children[index] as HTMLElement | undefined)?.focus();
  };
  return (
    <div ref={ref} class="tabs" role="tablist" aria-label={label} onKeyDown={move}>
      {tabs.map((tab) => (
        <button key={tab.id} type="button" role="tab" id={`tab-${tab.id}`} aria-selected={tab.id === current} aria-controls="tab-panel" tabIndex={tab.id === current ? 0 : -1} onClick={() => onChange(tab.id)}>
          {tab.label}{tab.mark}
        </button>
      ))}
    </div>
  );
}

export function TabPanel({ id, children }: { id: string; children: ComponentChildren }): JSX.Element {
  return <div role="tabpanel" id="tab-panel" aria-labelledby={`tab-${id}`}>{children}</div>;
}

// States

export function State({ state }: { state: string }): JSX.Element {
  const { level, word } = stateOf(state);
  return <span class="state"><Sign level={level} />{word}</span>;
}

export function Health({ level, children }: { level: Level; children: ComponentChildren }): JSX.Element {
  return <span class="state"><Sign level={level} />{children}</span>;
}

export function Empty({ title, children }: { title: string; children?: ComponentChildren }): JSX.Element {
  return <div class="empty"><strong>{title}</strong>{children}</div>;
}

export function Loading({ what = "Loading …" }: { what?: string }): JSX.Element {
  return <div class="loading" role="status">{what}</div>;
}

export function Failed({ error, retry }: { error: unknown; retry?: () => void }): JSX.Element {
  return (
    <div class="error-box" role="alert">
      <p>{words(error)}</p>
      {retry && <p><button type="button" class="button small" onClick={retry}>Try again</button></p>}
    </div>
  );
}

export function Panel({ title, actions, children, id, pad, live }: { title: ComponentChildren; actions?: ComponentChildren; children: ComponentChildren; id?: string; pad?: boolean; live?: boolean }): JSX.Element {
  // No landmark: there are many, and each has a heading.
  return (
    <section class={`panel${live ? " live" : ""}`}>
      <header>
        <h2 id={id}>{title}</h2>
        {actions && <div class="actions">{actions}</div>}
      </header>
      {pad ? <div class="body">{children}</div> : children}
    </section>
  );
}

/** A region that scrolls sideways by keyboard, too. */
export function Scroll({ label, children }: { label: string; children: ComponentChildren }): JSX.Element {
  return <div class="scroll" role="region" aria-label={label} tabIndex={0}>{children}</div>;
}

export function Figures({ items }: { items: { label: string; value: ComponentChildren; level?: Level }[] }): JSX.Element {
  return (
    <dl class="figures live">
      {items.map((item) => (
        <div key={item.label} class={item.level ?? ""}>
          <dt>{item.label}</dt>
          <dd>{item.value}</dd>
        </div>
      ))}
    </dl>
  );
}

/** A bar from 0 to `max`. */
export function Gauge({ value, max = 1, level }: { value: number | null; max?: number; level?: Level | undefined }): JSX.Element {
  const share = value === null || !(max > 0) ? 0 : Math.min(1, Math.max(0, value / max));
  return (
    <span class={`gauge ${level ?? ""}`} aria-hidden="true">
      <svg width="64" height="8"><rect width={64 * share} height="8" /></svg>
    </span>
  );
}

export function Spark({ values, label }: { values: (number | null)[]; label: string }): JSX.Element {
  const max = Math.max(1e-9, ...values.map((value) => value ?? 0)) * 1.1;
  const from = 120 - values.length;
  let line = "";
  if (values.length > 2) values.forEach((value, i) => {
    if (value !== null) line += `${line ? "L" : "M"}${from + i} ${(24 - (24 * value) / max).toFixed(1)}`;
  });
  return (
    <svg class="spark" viewBox="0 0 120 24" preserveAspectRatio="none" role="img" aria-label={label}>
      {line && <path class="area" d={`${line}L119 24L${from} 24Z`} />}
      <path d={line} />
    </svg>
  );
}

export function Segments<T extends string>({ label, options, value, onChange, disabled }: { label: string; options: { id: T; label: string }[]; value: T; onChange: (id: T) => void; disabled?: boolean }): JSX.Element {
  return (
    <span class="segments" role="group" aria-label={label}>
      {options.map((option) => (
        <button key={option.id} type="button" aria-pressed={option.id === value} disabled={disabled ?? false} onClick={() => onChange(option.id)}>
          {option.label}
        </button>
      ))}
    </span>
  );
}

/** Loads an answer, again when `keys` change and every so many seconds. */
export function useAnswer<T>(path: string | null, every = 0, keys: unknown[] = []): { data: T | null; error: unknown; again: () => void; at: number } {
  const [state, set] = useState<{ data: T | null; error: unknown; path: string | null; at: number }>({ data: null, error: null, path, at: 0 });
  const again = useRef<() => void>(() => undefined);
  useEffect(() => {
    if (path === null) return;
    const stop = new AbortController();
    let timer = 0;
    const load = async () => {
      clearTimeout(timer);
      const begin = performance.now();
      try {
        const data = await get<T>(path, stop.signal);
        set({ data, error: null, path, at: Date.now() });
      } catch (error) {
        if (stop.signal.aborted) return;
        set((old) => ({ data: old.path === path ? old.data : null, error, path, at: old.at }));
      }
      // What takes long is asked for less often.
      if (every > 0) timer = window.setTimeout(load, Math.max(every * 1000, 20 * (performance.now() - begin)));
    };
    again.current = () => void load();
    void load();
    return () => {
      stop.abort();
      clearTimeout(timer);
    };
  }, [path, every, ...keys]);
  const mine = state.path === path;
  return { data: mine ? state.data : null, error: mine ? state.error : null, at: state.at, again: () => again.current() };
}

/** Rows of a list that are shown at once, where a filter finds the others. */
export const SHOWN = 200;

/** An answer of the API: being loaded, failed, empty, or as `children` shows it. */
export function Answer<T>({ answer, empty, children }: { answer: { data: T | null; error: unknown; again: () => void; at: number }; empty: JSX.Element; children: (data: NonNullable<T>) => JSX.Element }): JSX.Element {
  if (answer.error && answer.data === null) return <Failed error={answer.error} retry={answer.again} />;
  if (answer.at === 0) return <Loading />;
  if (answer.data === null || (Array.isArray(answer.data) && answer.data.length === 0)) return <div class="panel">{empty}</div>;
  return children(answer.data as NonNullable<T>);
}

/** Height of the rows of a table that is drawn only where it is seen. */
const ROW = 34;

/** A table of which only the rows that are seen are in the page, if there are many. */
export function VirtualTable<T>({ label, rows, columns, head, row, none }: { label: string; rows: T[]; columns: number; head: ComponentChildren; row: (item: T) => JSX.Element; none: string }): JSX.Element {
  const box = useRef<HTMLDivElement>(null);
  const [view, setView] = useState({ from: 0, to: 60 });
  const measure = () => {
    const element = box.current;
    if (!element) return;
    const from = Math.max(0, Math.floor(element.scrollTop / ROW) - 10);
    const to = Math.ceil((element.scrollTop + element.clientHeight) / ROW) + 10;
    setView((old) => (old.from === from && old.to === to ? old : { from, to }));
  };
  useLayoutEffect(measure, [rows.length]);
  // Few rows are all there, so that readers and searches of the browser find them.
  const whole = rows.length <= 100;
  const from = whole ? 0 : Math.min(view.from, Math.max(0, rows.length - 1));
  const to = whole ? rows.length : Math.min(rows.length, view.to);
  const spacer = (count: number) => <tr class="spacer" aria-hidden="true" style={{ height: `${count * ROW}px` }}><td colSpan={columns} /></tr>;
  return (
    <div ref={box} class="scroll virtual" role="region" aria-label={label} tabIndex={0} onScroll={measure}>
      <table aria-rowcount={rows.length + 1}>
        <thead><tr aria-rowindex={1}>{head}</tr></thead>
        <tbody>
          {from > 0 && spacer(from)}
          {rows.slice(from, to).map(row)}
          {to < rows.length && spacer(rows.length - to)}
        </tbody>
      </table>
      {rows.length === 0 && <Empty title={none} />}
    </div>
  );
}

/** Why a change is not possible, for the title of a button that is off. */
export function needs(role: Role): { disabled: boolean; title?: string } {
  return may(role) ? { disabled: false } : { disabled: true, title: `Needs the role “${role}”` };
}

export function useWidth<T extends HTMLElement>(): [{ current: T | null }, number] {
  const ref = useRef<T>(null);
  const [width, set] = useState(0);
  useLayoutEffect(() => {
    const element = ref.current;
    if (!element) return;
    const observer = new ResizeObserver(() => set(Math.floor(element.clientWidth)));
    observer.observe(element);
    set(Math.floor(element.clientWidth));
    return () => observer.disconnect();
  }, []);
  return [ref, width];
}
